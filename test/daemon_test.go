package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// daemon is a weir process on a host: "weir run" or "weir agent".
type daemon struct {
	t      *testing.T
	host   *netlab.Host
	binary string // of weir
	vrf    string // its sockets are in this VRF; empty: none
	verb   string
	flags  []string // in addition to the usual ones
	bpffs  string
	config string // its file
	log    string
	socket string
	cmd    *netlab.Command
	ended  chan struct{}

	user  *syscall.Credential // the process's user; nil: root
	gives []uintptr           // the capabilities of such a user's process
}

// startDaemon starts a weir process with that configuration and waits until it works as the
// configuration says.
func startDaemon(t *testing.T, h *netlab.Host, verb, text string, flags ...string) *daemon {
	t.Helper()
	d := launchDaemon(t, h, verb, text, flags...)
	d.ready()
	return d
}

// launchDaemon is startDaemon without the wait, for several that start at once.
func launchDaemon(t *testing.T, h *netlab.Host, verb, text string, flags ...string) *daemon {
	t.Helper()
	d := newDaemon(t, h, verb, text, flags...)
	d.start()
	return d
}

// newDaemon is launchDaemon without the start.
func newDaemon(t *testing.T, h *netlab.Host, verb, text string, flags ...string) *daemon {
	t.Helper()
	// The file has its own directory, because weir watches the directory.
	if err := os.MkdirAll(filepath.Join(h.Dir(), verb), 0o755); err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, host: h, binary: weir, verb: verb, bpffs: h.BPFFS(), log: filepath.Join(h.Dir(), verb+".log"),
		socket: filepath.Join(h.Dir(), verb+".sock"), flags: flags}
	d.edit(text)
	return d
}

// edit writes the daemon's file.
func (d *daemon) edit(config string) {
	d.config = write(d.t, d.host, filepath.Join(d.verb, "weir.yaml"), config)
}

// start starts the process.
func (d *daemon) start() {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	flags := append([]string{d.verb, "-c", d.config, "--bpffs", d.bpffs, "--socket", d.socket}, d.flags...)
	if d.vrf != "" {
		d.cmd = d.host.Command(context.Background(), "ip", append([]string{"vrf", "exec", d.vrf, d.binary}, flags...)...)
	} else {
		d.cmd = d.host.Command(context.Background(), d.binary, flags...)
	}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr.Credential, d.cmd.SysProcAttr.AmbientCaps = d.user, d.gives
	if err := d.cmd.Start(); err != nil {
		d.t.Fatalf("start weir %s on %s: %v", d.verb, d.host.Name, err)
	}
	cmd, ended := d.cmd, make(chan struct{})
	d.ended = ended
	go func() {
		_ = cmd.Wait() // its log says how it ended
		close(ended)
	}()
}

// end ends the process by a signal.
func (d *daemon) end(signal os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(signal); err != nil {
		d.t.Fatalf("signal weir %s: %v", d.verb, err)
	}
	<-d.ended
}

// hangUp asks the process to read its file again.
func (d *daemon) hangUp() {
	d.t.Helper()
	d.signal(syscall.SIGHUP)
}

// signal sends the process a signal that does not end it.
func (d *daemon) signal(signal os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(signal); err != nil {
		d.t.Fatalf("signal weir %s: %v", d.verb, err)
	}
}

// waitFor waits for a condition as long as the process runs.
func (d *daemon) waitFor(what string, condition func() bool) {
	d.t.Helper()
	waitFor(d.t, fmt.Sprintf("weir %s on %s to %s", d.verb, d.host.Name, what), func() bool {
		select {
		case <-d.ended:
			d.t.Fatalf("weir %s on %s ended:\n%s", d.verb, d.host.Name, d.logged())
		default:
		}
		return condition()
	})
}

// logged returns all that the process has logged.
func (d *daemon) logged() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(text)
}

// ready waits until the daemon works as its file says.
func (d *daemon) ready() {
	d.t.Helper()
	defer func() {
		if d.t.Failed() {
			d.t.Logf("weir %s on %s logged:\n%s", d.verb, d.host.Name, d.logged())
		}
	}()
	c := d.read()
	if d.verb == "agent" {
		// An agent has the VIPs a moment before its programs, and on a client's host no VIPs at
		// all: it answers when all is there.
		d.waitFor("hold the VIPs and answer", func() bool { return d.holds(c) && d.listens() })
		return
	}
	d.waitFor("forward to every active backend", func() bool { return d.forwards(c) })
}

// forwards reports whether the director has the services with their policies, and whether their
// active backends own slots.
func (d *daemon) forwards(c model.Config) bool {
	services, err := d.services()
	if err != nil || len(services) != len(c.Services) {
		return false
	}
	for _, want := range c.Services {
		i := slices.IndexFunc(services, func(s model.ServiceStatus) bool { return s.Name == want.Name })
		if i < 0 || services[i].Policy != want.Policy || !sharesSlots(services[i], want) {
			return false
		}
	}
	return true
}

// sharesSlots reports whether exactly the backends that should own slots do.
func sharesSlots(status model.ServiceStatus, want model.Service) bool {
	if len(status.Backends) != len(want.Backends) {
		return false
	}
	for _, b := range want.Backends {
		i := slices.IndexFunc(status.Backends, func(s model.BackendStatus) bool { return s.Name == b.Name })
		if i >= 0 && status.Tiers != nil && b.Tier != status.Tiers.Active {
			continue // the ring in use is another tier's
		}
		if i < 0 || (status.Backends[i].Slots > 0) != (b.State == model.Active && b.Weight > 0) {
			return false
		}
		// Without a next hop a backend is down, and others have its slots.
		if b.State == model.Active && status.Backends[i].State != model.Active {
			return false
		}
	}
	return true
}

// holds reports whether the host has the VIPs that come to it unchanged.
func (d *daemon) holds(c model.Config) bool {
	held := map[netip.Addr]bool{}
	err := d.host.Do(func() error {
		addresses, err := net.InterfaceAddrs()
		for _, a := range addresses {
			if ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP); ok {
				held[ip.Unmap()] = true
			}
		}
		return err
	})
	if err != nil {
		d.t.Fatalf("addresses of %s: %v", d.host.Name, err)
	}
	for _, s := range c.Services {
		for _, b := range s.Backends {
			if held[b.Address] && b.ModeIn(s) != model.NAT && !held[s.VIP] {
				return false
			}
		}
	}
	return true
}

func (d *daemon) listens() bool { return listens(d.socket) }

// listens reports whether a process answers on its socket. The socket's file says less: a process makes it before it
// listens, and leaves it behind if it is killed.
func listens(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// read returns the daemon's file, decoded.
func (d *daemon) read() model.Config {
	d.t.Helper()
	c, err := config.Load(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	return c
}

// apply gives a director, or its group, a set of services.
func (d *daemon) apply(services ...string) {
	d.t.Helper()
	set := write(d.t, d.host, "set.yaml", "services:\n"+strings.Join(services, ""))
	on(d.t, d.host, weir, "apply", "-f", set, "--socket", d.socket)
}

// askWeir asks a process as a user does, and decodes the answer.
func askWeir[T any](d *daemon, command ...string) (answer T, err error) {
	d.t.Helper()
	out, err := tryOn(d.t, d.host, weir, append(command, "-o", "json", "--socket", d.socket)...)
	if err != nil {
		return answer, fmt.Errorf("weir %s on %s: %w: %s", command[0], d.host.Name, err, out)
	}
	return answer, json.Unmarshal([]byte(out), &answer)
}

// mustAskWeir is askWeir for a process that has to answer.
func mustAskWeir[T any](d *daemon, command ...string) T {
	d.t.Helper()
	answer, err := askWeir[T](d, command...)
	if err != nil {
		d.t.Fatal(err)
	}
	return answer
}

func (d *daemon) services() ([]model.ServiceStatus, error) {
	return askWeir[[]model.ServiceStatus](d, "services")
}

func (d *daemon) backends() []api.Backend {
	d.t.Helper()
	return mustAskWeir[[]api.Backend](d, "backends")
}

// directors returns what each director of the group runs, and whether this is known of two directors.
func (d *daemon) directors() (runs []model.DirectorRun, both bool) {
	runs, err := askWeir[[]model.DirectorRun](d, "directors")
	return runs, err == nil && len(runs) == 2
}

func (d *daemon) directorStatus() api.Status {
	d.t.Helper()
	return mustAskWeir[api.Status](d, "status", "--alive")
}

func (d *daemon) agentStatus() model.AgentStatus {
	d.t.Helper()
	return mustAskWeir[model.AgentStatus](d, "status", "--alive")
}

// reason is how many packets the director has counted under a reason.
func (d *daemon) reason(name string) uint64 {
	d.t.Helper()
	for _, r := range d.directorStatus().Reasons {
		if r.Name == name {
			return r.Packets
		}
	}
	d.t.Fatalf("there is no reason %s", name)
	return 0
}
