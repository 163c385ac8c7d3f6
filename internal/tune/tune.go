// Package tune knows the settings of a host that decide how well its CPUs share a NIC's packets: how many
// queues the NIC has, which CPUs serve them, how packets are spread over them. There is one list of them
// (Survey): weir doctor tells from it what is amiss, and weir tune sets it.
package tune

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
)

// Kind is what a setting, or a part of the survey, is about.
type Kind string

// The kinds.
const (
	Queues     Kind = "queues"     // how many an interface has
	Rings      Kind = "rings"      // how many packets they hold
	RSS        Kind = "rss"        // how packets are spread over them
	Hash       Kind = "hash"       // what of a packet decides that
	Interrupts Kind = "interrupts" // which CPUs serve them
	Threaded   Kind = "threaded"   // whether threads do
	Governor   Kind = "governor"   // of the CPUs' frequency

	// What weir does not set.
	Deferral   Kind = "deferral"
	BusyPoll   Kind = "busy polling"
	NUMA       Kind = "numa"
	IRQBalance Kind = "irqbalance"
)

// stages order kinds: where queues or their rings change, drivers may change what comes behind them.
var stages = []Kind{Queues, Rings, RSS, Hash, Interrupts, Threaded, Governor}

// Setting is one value of the host.
type Setting struct {
	Kind      Kind
	Interface string // empty: it is the host's
	Of        string // which of several: "38" of interrupts, "udp4" of hash, "cpu0" of governor
	Identity  string // of what has the value: another thing may have its name by now
	Now, Want string

	read    func() (string, error)
	write   func(string) error
	command func(string) string
	show    func(string) string // nil: as it is
	link    *nic                // whose driver begins anew with it; nil: none does
}

// Name tells settings apart.
func (s *Setting) Name() string {
	return strings.Join(slices.DeleteFunc([]string{string(s.Kind), s.Interface, s.Of}, func(part string) bool { return part == "" }), " ")
}

// Command is what one would type to set a value.
func (s *Setting) Command(value string) string { return s.command(value) }

// Show is a value as people read it.
func (s *Setting) Show(value string) string {
	if s.show == nil {
		return value
	}
	return s.show(value)
}

// Part is what the survey says of one kind and interface.
type Part struct {
	Kind      Kind
	Interface string // empty: the host
	Text      string // what is, in one line
	Amiss     bool
	Fix       string    // what to do about it that weir does not do
	Settings  []Setting // that the text is about; those that are amiss want another value
}

// Check is the part's name.
func (p *Part) Check() string { return strings.TrimSpace(string(p.Kind) + " " + p.Interface) }

// Options say what to look for.
type Options struct {
	// Reserved are queues of an interface that only rules lead to: RSS must not use them.
	Reserved map[string][]uint32
	// FanOut are CPUs that get packets from others: no queue is served there.
	FanOut []uint32
	// Threaded asks for threads that serve the queues.
	Threaded bool
}

// Host is where the settings are.
type Host struct {
	Sys, Proc string // where sysfs and procfs are mounted
	NIC       func(name string) NIC
	Namespace func() (uint64, error) // of the network, of the calling thread
	// Patience is how long a link may take until packets pass again, where its driver has begun anew.
	Patience time.Duration
	// Steady is how long they must pass until that is believed: a bond looks at its members from time to time.
	Steady time.Duration
	// Done ends what is done as soon as it can be; nil: nothing does.
	Done <-chan struct{}
}

// This is the host, and the network namespace of the calling thread.
func This() *Host {
	return &Host{Sys: "/sys", Proc: "/proc", NIC: newNIC, Namespace: device.NamespaceID, Patience: 30 * time.Second, Steady: 2 * time.Second}
}

// Survey looks at interfaces, and at what they share. Of a bond it looks at the members. The error names the
// interfaces that are not there; the parts are about the others.
func (h *Host) Survey(names []string, o Options) ([]Part, error) {
	s := survey{host: h, options: o}
	err := s.open(names)
	s.cpus = h.cpus()
	for i := range s.cpus {
		s.cpus[i].isolated = s.cpus[i].isolated || slices.Contains(o.FanOut, uint32(s.cpus[i].number))
	}
	for _, n := range s.nics {
		s.queues(n)
		s.rings(n)
		s.rss(n)
		s.hash(n)
	}
	s.interrupts()
	for _, n := range s.nics {
		s.threaded(n)
		s.deferral(n)
	}
	s.governor()
	s.busyPolling()
	s.numa()
	s.irqbalance()
	return s.parts, err
}

// survey is one look at a host.
type survey struct {
	host    *Host
	options Options
	cpus    topology
	nics    []*nic
	parts   []Part
}

// nic is an interface of the survey.
type nic struct {
	NIC
	host     *Host
	name     string
	driver   string // empty: the kernel does not say it
	identity string
	dir      string // in sysfs; empty: sysfs does not show it
	real     bool   // it has a device
	node     int    // of the device; -1: none
	queues   uint32 // that receive
	wanted   uint32 // that are to receive
	served   []interrupt
}

// open finds the interfaces.
func (s *survey) open(names []string) error {
	var missing []error
	for _, name := range names {
		device, err := s.host.NIC(name).Device()
		if err != nil {
			missing = append(missing, err)
			continue
		}
		dir := s.host.sysfs(name, device)
		if members := strings.Fields(readText(filepath.Join(dir, "bonding/slaves"))); dir != "" && len(members) > 0 {
			missing = append(missing, s.open(members))
			continue
		}
		if slices.ContainsFunc(s.nics, func(n *nic) bool { return n.name == name }) {
			continue
		}
		n := &nic{NIC: s.host.NIC(name), host: s.host, name: name, driver: s.host.NIC(name).Driver(), identity: device.identity(), dir: dir, node: -1}
		if dir != "" {
			n.real = exists(filepath.Join(dir, "device"))
			n.node = s.host.nodeOf(dir)
		}
		if n.queues, err = n.ReceiveQueues(); err != nil && dir != "" {
			there, _ := filepath.Glob(filepath.Join(dir, "queues/rx-*")) // the pattern is not bad
			n.queues = uint32(len(there))
		}
		n.wanted = n.queues
		s.nics = append(s.nics, n)
	}
	return errors.Join(missing...)
}

// States of a port in LACP: it takes packets, and sends them (include/net/bond_3ad.h).
const (
	lacpCollecting   = 0x10
	lacpDistributing = 0x20
)

// passes says whether packets pass: the link has a carrier, and a bond that it is in uses it.
func (n *nic) passes() bool {
	if !n.Running() {
		return false
	}
	member := filepath.Join(n.dir, "bonding_slave")
	if n.dir == "" || !exists(member) {
		return true
	}
	lacp, err := strconv.Atoi(readText(filepath.Join(member, "ad_actor_oper_port_state"))) // other bonds have no number there
	return readText(filepath.Join(member, "mii_status")) == "up" && (err != nil || lacp&lacpCollecting != 0 && lacp&lacpDistributing != 0)
}

// mayPause says whether its driver may need a while to begin anew: virtual ones do not.
func (n *nic) mayPause() bool { return n.real || n.dir == "" }

// ErrTold says that tune was told to end.
var ErrTold = errors.New("it was told to end, and nothing else is changed")

// ErrNoPackets says that a link is not up again.
var ErrNoPackets = errors.New("nothing else is changed")

// await waits until packets pass again, and go on to.
func (n *nic) await() error {
	began := time.Now()
	for since := began; time.Since(since) < n.host.Steady; {
		if !n.passes() {
			since = time.Now()
		}
		if time.Since(began) >= n.host.Patience {
			return fmt.Errorf("%s has no link, or is not used by its bond, %v after its driver began anew: %w", n.name, n.host.Patience, ErrNoPackets)
		}
		select {
		case <-n.host.Done:
			return fmt.Errorf("%s may have no link yet, because its driver began anew; %w", n.name, errors.Join(ErrTold, ErrNoPackets))
		case <-time.After(100 * time.Millisecond): // links take seconds
		}
	}
	return nil
}

// sysfs returns an interface's directory. A sysfs shows the interfaces of the network namespace that mounted
// it, where another interface may have the name.
func (h *Host) sysfs(name string, d Device) string {
	dir := filepath.Join(h.Sys, "class/net", name)
	if readText(filepath.Join(dir, "ifindex")) != fmt.Sprint(d.Index) || readText(filepath.Join(dir, "address")) != d.Address {
		return ""
	}
	return dir
}

func (s *survey) add(p Part) { s.parts = append(s.parts, p) }

// file is a setting that is a file.
func file(path string) (read func() (string, error), write func(string) error, command func(string) string) {
	read = func() (string, error) {
		text, err := os.ReadFile(path)
		return strings.TrimSpace(string(text)), err
	}
	write = func(value string) error { return os.WriteFile(path, []byte(value), 0) } // a missing one cannot be made there
	command = func(value string) string { return "echo " + value + " >" + path }
	return read, write, command
}

// readText returns what a file has, or nothing.
func readText(path string) string {
	text, _ := os.ReadFile(path) // it is not there on every host
	return strings.TrimSpace(string(text))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// unsupported says that a driver does not have something.
func unsupported(err error) bool { return errors.Is(err, unix.EOPNOTSUPP) }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
