package tune

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
)

// machine is a tree of files like that of a server with two sockets of four cores with two threads each, and
// NICs of PCI in it. What ethtool would say of a NIC, and set, a card does: no machine of the tests has one.
type machine struct {
	t     *testing.T
	root  string
	cards map[string]*card
	next  int // interrupt

	patience, steady time.Duration
	namespace        uint64 // of the host; cards are in 1
}

// newMachine has CPUs 0-3 and 8-11 on node 0, and 4-7 and 12-15 on node 1; 8 is the sibling of 0.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, namespace: 1, root: t.TempDir(), cards: map[string]*card{}, next: 30}
	m.write("sys/devices/system/cpu/online", "0-15")
	m.write("sys/devices/system/cpu/isolated", "")
	m.write("sys/devices/system/node/node0/cpulist", "0-3,8-11")
	m.write("sys/devices/system/node/node1/cpulist", "4-7,12-15")
	for c := range 16 {
		m.write(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c), fmt.Sprintf("%d,%d", c%8, c%8+8))
		m.write(fmt.Sprintf("sys/devices/system/cpu/cpufreq/policy%d/scaling_governor", c), "schedutil")
		m.write(fmt.Sprintf("sys/devices/system/cpu/cpufreq/policy%d/scaling_available_governors", c), "performance schedutil")
		m.link(fmt.Sprintf("../cpufreq/policy%d", c), fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq", c))
	}
	m.write("proc/sys/kernel/random/boot_id", "first")
	m.write("proc/sys/net/core/busy_poll", "0")
	return m
}

func (m *machine) host() *Host {
	return &Host{Sys: filepath.Join(m.root, "sys"), Proc: filepath.Join(m.root, "proc"), Patience: m.patience, Steady: m.steady, Namespace: func() (uint64, error) { return m.namespace, nil }, NIC: func(name string) NIC {
		if c := m.cards[name]; c != nil {
			return c
		}
		return absent(name)
	}}
}

// store keeps the record beside the tree.
func (m *machine) store() Store {
	path := filepath.Join(m.root, RecordName)
	return Store{Path: path, Write: func(text []byte) error { return os.WriteFile(path, text, 0o600) }}
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	path = filepath.Join(m.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) link(to, path string) {
	m.t.Helper()
	path = filepath.Join(m.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) read(path string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.root, path))
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// card is a NIC of PCI with a driver.
type card struct {
	m          *machine
	name       string
	pci        string // its directory
	index      int
	now, most  device.Channels
	ring, long device.Rings
	table      []uint32
	configured bool // somebody has written the table: it does not follow the number of queues
	fields     map[uint32]device.HashFields
	irqs       []int // by queue
	refuses    map[string]error
	ignores    map[string]bool // it accepts what it does not do
	// binds chooses the CPUs of the queues' interrupts whenever their number changes, as virtio_net does.
	binds func(queue int) string
	sets  []string // what it was told, in order

	driver string
	killed bool // tune is, when it has set the queues
	// down is how often its link is asked for until it is up again after its driver began anew, which shows when
	// it has been asked for late times; -1: for ever.
	down, left, late, unseen int
}

// addCard adds a NIC with so many queues of 16.
func (m *machine) addCard(name string, node, queues int) *card {
	m.t.Helper()
	c := &card{m: m, name: name, index: 2 + len(m.cards), now: device.Channels{Combined: uint32(queues)}, most: device.Channels{Combined: 16},
		ring: device.Rings{Receive: 512, Send: 512}, long: device.Rings{Receive: 4096, Send: 4096},
		fields: map[uint32]device.HashFields{device.HashedUDP4: device.HashAddresses, device.HashedUDP6: device.HashAddresses},
		table:  make([]uint32, 128), refuses: map[string]error{}, ignores: map[string]bool{}}
	c.pci = fmt.Sprintf("sys/devices/pci0000:00/0000:%02x:00.0", c.index)
	m.write(c.pci+"/numa_node", strconv.Itoa(node))
	at := c.pci + "/net/" + name
	m.write(at+"/ifindex", strconv.Itoa(c.index))
	m.write(at+"/address", c.address())
	m.write(at+"/threaded", "0")
	m.write(at+"/napi_defer_hard_irqs", "0")
	m.write(at+"/gro_flush_timeout", "0")
	m.link("../..", at+"/device")
	m.link("../../devices/pci0000:00/"+filepath.Base(c.pci)+"/net/"+name, "sys/class/net/"+name)
	m.cards[name] = c
	c.interrupt(name + "-misc") // of the adapter, and of no queue
	c.makeQueues()
	return c
}

func (c *card) address() string { return fmt.Sprintf("02:00:00:00:00:%02x", c.index) }

// interrupt adds one, which may come to any CPU, and comes to the first.
func (c *card) interrupt(action string) int {
	c.m.next++
	c.m.write(fmt.Sprintf("%s/msi_irqs/%d", c.pci, c.m.next), "msix")
	c.m.write(fmt.Sprintf("proc/irq/%d/smp_affinity_list", c.m.next), "0-15")
	c.m.write(fmt.Sprintf("proc/irq/%d/effective_affinity_list", c.m.next), "0")
	if err := os.MkdirAll(filepath.Join(c.m.root, "proc/irq", strconv.Itoa(c.m.next), action), 0o755); err != nil {
		c.m.t.Fatal(err)
	}
	return c.m.next
}

// makeQueues gives each queue an interrupt, and spreads RSS over them unless somebody has.
func (c *card) makeQueues() {
	for q := len(c.irqs); q < int(c.now.Combined); q++ {
		c.irqs = append(c.irqs, c.interrupt(fmt.Sprintf("i40e-%s-TxRx-%d", c.name, q)))
	}
	for _, gone := range c.irqs[c.now.Combined:] {
		if err := errors.Join(os.RemoveAll(filepath.Join(c.m.root, "proc/irq", strconv.Itoa(gone))), os.Remove(filepath.Join(c.m.root, c.pci, "msi_irqs", strconv.Itoa(gone)))); err != nil {
			c.m.t.Fatal(err)
		}
	}
	c.irqs = c.irqs[:c.now.Combined]
	for q, irq := range c.irqs {
		if c.binds != nil {
			c.m.write(fmt.Sprintf("proc/irq/%d/smp_affinity_list", irq), c.binds(q))
		}
	}
	if !c.configured {
		_ = c.ResetIndirection()
	}
}

// affinities are the CPUs of the queues' interrupts, as they are written.
func (c *card) affinities() (cpus []string) {
	for _, irq := range c.irqs {
		cpus = append(cpus, c.m.read(fmt.Sprintf("proc/irq/%d/smp_affinity_list", irq)))
	}
	return cpus
}

// told notes a change, and says whether it happens.
func (c *card) told(what string) (happens bool, err error) {
	c.sets = append(c.sets, what)
	for name, other := range c.m.cards {
		if other.left != 0 {
			c.m.t.Errorf("%s is told to change %s while %s has no link", c.name, what, name)
		}
	}
	return !c.ignores[what], c.refuses[what]
}

func (c *card) Device() (Device, error) { return Device{1, c.index, c.address()}, nil }

func (c *card) Driver() string { return c.driver }

func (c *card) Running() bool {
	if c.unseen > 0 {
		c.unseen--
		return true
	}
	if c.left > 0 {
		c.left--
	}
	return c.left == 0
}

func (c *card) ReceiveQueues() (uint32, error) { return c.now.Combined, nil }

func (c *card) Channels() (now, most device.Channels, err error) { return c.now, c.most, nil }

func (c *card) SetChannels(want device.Channels) error {
	happens, err := c.told("queues")
	if c.configured && slices.Max(c.table) >= want.Combined { // as net/ethtool/channels.c
		err = unix.EINVAL
	}
	if err == nil && happens {
		c.now, c.left, c.unseen = want, c.down, c.late
		c.makeQueues()
		if c.killed {
			panic("killed")
		}
	}
	return err
}

func (c *card) Rings() (now, most device.Rings, err error) { return c.ring, c.long, nil }

func (c *card) SetRings(want device.Rings) error {
	happens, err := c.told("rings")
	if err == nil && happens {
		c.ring, c.left, c.unseen = want, c.down, c.late
	}
	return err
}

func (c *card) Indirection() ([]uint32, error) { return slices.Clone(c.table), nil }

func (c *card) SetIndirection(queues []uint32) error {
	happens, err := c.told("rss")
	if slices.Max(queues) >= c.now.Combined {
		err = unix.EINVAL
	}
	if err == nil && happens {
		c.table, c.configured = slices.Clone(queues), true
	}
	return err
}

func (c *card) ResetIndirection() error {
	c.configured = false
	for i := range c.table {
		c.table[i] = uint32(i) % c.now.Combined
	}
	return nil
}

func (c *card) HashFields(packets uint32) (device.HashFields, error) { return c.fields[packets], nil }

func (c *card) SetHashFields(packets uint32, fields device.HashFields) error {
	happens, err := c.told(fmt.Sprintf("hash %d", packets))
	if err == nil && happens {
		c.fields[packets] = fields
	}
	return err
}

// absent is an interface that is not there.
type absent string

func (a absent) Device() (Device, error) {
	return Device{}, fmt.Errorf("there is no interface %s", string(a))
}
func (absent) Driver() string                                 { return "" }
func (absent) Running() bool                                  { return false }
func (absent) ReceiveQueues() (uint32, error)                 { return 0, unix.ENODEV }
func (absent) Channels() (now, most device.Channels, e error) { return now, most, unix.ENODEV }
func (absent) SetChannels(device.Channels) error              { return unix.ENODEV }
func (absent) Rings() (now, most device.Rings, e error)       { return now, most, unix.ENODEV }
func (absent) SetRings(device.Rings) error                    { return unix.ENODEV }
func (absent) Indirection() ([]uint32, error)                 { return nil, unix.ENODEV }
func (absent) SetIndirection([]uint32) error                  { return unix.ENODEV }
func (absent) ResetIndirection() error                        { return unix.ENODEV }
func (absent) HashFields(uint32) (device.HashFields, error)   { return 0, unix.ENODEV }
func (absent) SetHashFields(uint32, device.HashFields) error  { return unix.ENODEV }

// state is all that weir tune may change.
func (m *machine) state() map[string]string {
	all := map[string]string{}
	for name, c := range m.cards {
		all["queues "+name] = fmt.Sprint(c.now)
		all["rings "+name] = fmt.Sprint(c.ring)
		all["rss "+name] = fmt.Sprint(c.table)
		all["hash "+name] = fmt.Sprint(c.fields)
		all["interrupts "+name] = strings.Join(c.affinities(), " ")
		all["threaded "+name] = m.read("sys/class/net/" + name + "/threaded")
	}
	for c := range 16 {
		all[fmt.Sprint("governor ", c)] = m.read(fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", c))
	}
	return all
}
