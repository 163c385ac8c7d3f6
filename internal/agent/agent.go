// Package agent is weir on a backend's host. It puts bpf/host/host.bpf.c into the kernel,
// which unwraps what directors send, passes on what has no connection here, and
// clamps the MSS of what VIPs offer, holds VIPs on the loopback interface, and sets
// what Linux must be told so that the host neither answers nor announces them. It
// outlives its process: what is pinned keeps working, and Open adopts it.
//
// Known limits:
//
//   - A process on this host that connects to one of its VIPs reaches this host:
//     the VIP is on lo.
//   - A host is in one segment: services that differ in their segment only are one
//     service to it.
//   - Sockets in other network namespaces are seen in those that are named, and found
//     by the VIP only: see model.Agent.
//   - Outer packets in fragments or with IP options are left to the kernel.
package agent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/crowd"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// Deps are what an agent needs of the process that runs it.
type Deps struct {
	Pin        string   // directory on a BPF file system, shared with a director
	Interfaces []string // where tunnels come in; empty: the configuration says where
	Attach     Attach   // empty: AttachAuto
	UDPFlows   uint32   // how many flows are remembered; 0: every datagram stays where it arrives
	Log        *slog.Logger
	// Parts are further parts of the host that the agent's process owns.
	Parts []upkeep.Part
	// OnEvent is called with what becomes of parts of the host that are not as they should be, unless
	// it is nil.
	OnEvent func(upkeep.Event)
	// OnApplied is called each time that the agent has applied a configuration again by itself, with
	// the reason why it does not run, or nil if it runs; unless it is nil.
	OnApplied func(model.Config, error)

	noTCX bool             // behave as before Linux 6.6
	now   func() time.Time // of upkeep; nil: time.Now
	// listen makes the notices of upkeep; nil: listenToHost.
	listen func() (*upkeep.Notices, error)
}

// Agent is this host's agent. It works on the network namespace of the thread
// that calls it.
type Agent struct {
	*kernel
	deps       Deps
	sockets    sockets
	notices    *upkeep.Hearing
	reconciler *upkeep.Reconciler
	watched    atomic.Pointer[watched] // the backends whose loads are measured

	reporting     sync.Mutex
	notReported   error // why directors do not learn of connections
	noDropReports error // why they do not learn which servers drop datagrams

	mu          sync.Mutex
	closed      bool // it owns nothing any more
	given       bool // there is a configuration
	config      model.Config
	placed      affinities // of services, as files have said since this process began
	seen        host       // when the configuration was last applied, or tried
	problem     error      // why it does not run as a whole
	tried       time.Time
	planned     bool // what follows is what the host should have
	plan        plan
	tables      tables              // of that plan
	former      formerPeers         // of services' backends
	comparison  contents.Comparison // of what the maps have
	uplinks     []uplink
	attachments []attachment
	idle        Idle
	crowds      crowd.Watch[serviceInTable]
	counting    time.Duration // when flows of UDP are counted next
	defaults    defaultRoutes
	mtus        upkeep.MTUs // that the uplinks have had
}

// Open loads the programs and adopts what an earlier process left pinned. Until
// Set is called nothing changes. Errors: ErrRunning, ErrNoBPFFS.
func Open(d Deps) (*Agent, error) {
	d.Attach = cmp.Or(d.Attach, AttachAuto)
	if err := d.Attach.Validate(); err != nil {
		return nil, err
	}
	k, err := openKernel(d.Pin, d.UDPFlows, d.Log)
	if err != nil {
		return nil, err
	}
	s, err := openSockets()
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	if d.listen == nil {
		d.listen = listenToHost
	}
	a := &Agent{kernel: k, deps: d, sockets: s, notices: upkeep.Hear(d.listen), former: formerPeers{}}
	a.notices.C() // those of this thread's network namespace
	a.reconciler = upkeep.New(upkeep.Deps{Log: d.Log, OnEvent: d.OnEvent, Now: d.now}, a.parts()...)
	return a, nil
}

// listenToHost hears what changes of the parts that the agent keeps.
func listenToHost() (*upkeep.Notices, error) {
	return upkeep.Listen(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_TC)
}

// Close ends the process's part. The programs go on as they were set, and VIPs and sysctls stay:
// see Detach.
func (a *Agent) Close() error {
	a.mu.Lock() // a look of Follow may be under way
	defer a.mu.Unlock()
	a.closed = true
	a.notices.Close()
	a.sockets.close()
	return a.kernel.close()
}

// Set makes the host do what the configuration says. Everything new is in place before anything old
// goes. After an error the host does part of it, and Follow does the rest as soon as possible. It
// is no error that something that is asked for is not there: the agent waits for it.
func (a *Agent) Set(config model.Config) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.config, a.given = config, true
	a.defaults.forget()
	a.reconciler.Forget()
	h, err := a.look()
	if err != nil {
		a.problem, a.tried = err, time.Now()
		return err
	}
	return a.try(h)
}

// try does what Set does, with the last configuration.
func (a *Agent) try(h host) error {
	var differed map[string][]upkeep.Difference
	if a.planned {
		differed = a.repairable()
	}
	a.seen, a.tried = h, time.Now()
	a.problem = a.set(h)
	a.reconciler.Overwritten(differed)
	return a.problem
}

func (a *Agent) set(h host) error {
	if !a.pins.inPlace() {
		if err := a.pinAllAgain(); err != nil {
			return err
		}
	}
	p, err := newPlan(a.config, h)
	if err != nil {
		return err
	}
	a.watched.Store(newWatched(a.config, func(at netip.Addr) bool { return h.has(at) || h.elsewhere.addresses[at] }))
	if err := a.apply(p, h.uplinks); err != nil {
		return err
	}
	a.noteIdle(p, h)
	return nil
}

// host is what the kernel says about this host.
type host struct {
	addresses map[netip.Addr]int // index of the interface that has it
	others    map[netip.Addr]int // these without VIPs on lo, which the agent manages, and without loopback's own
	uplinks   []uplink
	elsewhere elsewhere
	waits     []wait // what is asked for and not there; not compared
}

func (h *host) has(address netip.Addr) bool { _, is := h.addresses[address]; return is }

// equal says whether the same has to be done. What is waited for does not matter.
func (h *host) equal(o host) bool {
	return maps.Equal(h.others, o.others) && slices.Equal(h.uplinks, o.uplinks) &&
		maps.Equal(h.elsewhere.addresses, o.elsewhere.addresses) &&
		slices.Equal(h.elsewhere.namespaces, o.elsewhere.namespaces)
}

func (a *Agent) look() (host, error) {
	at, err := addresses()
	if err != nil {
		return host{}, err
	}
	names := a.deps.Interfaces
	if len(names) == 0 {
		names = a.config.Agent.Interfaces
	}
	uplinks, waits, err := findUplinks(names, a.config, at, a.wasUplink, func() ([]int, error) { return a.defaults.list(time.Now()) })
	if err != nil {
		return host{}, err
	}
	elsewhere, missing, err := findNamespaces(a.config.Agent.Namespaces)
	return host{at, a.withoutVIPs(at), uplinks, elsewhere, append(waits, missing...)}, err
}

func (a *Agent) withoutVIPs(at map[netip.Addr]int) map[netip.Addr]int {
	others := maps.Clone(at)
	maps.DeleteFunc(others, func(address netip.Addr, _ int) bool { return address.IsLoopback() })
	for i := range a.config.Services {
		if vip := a.config.Services[i].VIP; others[vip] == loopbackIndex {
			delete(others, vip)
		}
	}
	return others
}

// wasUplink reports whether an interface has programs of the agent's.
func (a *Agent) wasUplink(index int) bool { return a.links.has(index) || hasFilters(index) }

func (a *Agent) apply(p plan, uplinks []uplink) error {
	endpoints, err := readAll[bpfHostEndpoint](a.objects.Endpoints)
	if err != nil {
		return err
	}
	ranges, err := readAll[bpfHostRange](a.objects.Ranges)
	if err != nil {
		return err
	}
	t, err := newTables(p, endpoints, ranges, a.objects.Services.MaxEntries())
	if err != nil {
		return err
	}
	if err := t.put(&a.objects.bpfMaps); err != nil {
		return err
	}
	a.plan, a.tables, a.uplinks, a.planned = p, t, uplinks, true
	in := entrances(uplinks)
	if err := a.redirect(p.redirects, in); err != nil {
		return err
	}
	if err := raiseSysctls(neededSysctls(in, p.quiet()), a.deps.Log); err != nil {
		return err
	}
	if err := holdVIPs(p.vips); err != nil {
		return err
	}
	if err := a.attach(uplinks); err != nil {
		return err
	}
	return errors.Join(
		releaseVIPs(p.vips),
		a.links.detachOthers(uplinks),
		t.prune(&a.objects.bpfMaps, a.former),
		a.retireOthers(),
		a.agePods(),
		a.countDatagrams())
}

// redirect prepares the maps of the programs of redirection. Once these are loaded they stay, for
// connections that have begun; before that nothing of them is loaded.
func (a *Agent) redirect(list []redirect, uplinks []uplink) error {
	if a.redirector == nil {
		if len(list) == 0 && !wasRedirecting(a.pins.state()) {
			return nil
		}
		r, err := openRedirector(a.pins.state())
		if err != nil {
			return err
		}
		a.redirector = r
	}
	return errors.Join(a.redirector.setPorts(uplinks), a.redirector.set(list))
}

func (a *Agent) attacher() *attacher {
	return &attacher{kernel: a.kernel, how: a.deps.Attach, director: a.plan.director, serves: a.plan.serves(), noTCX: a.deps.noTCX}
}

// attach attaches to the uplinks and logs where only the slower way was possible.
func (a *Agent) attach(uplinks []uplink) error {
	how := a.attacher()
	before := make(map[int]attachment)
	for _, at := range a.attachments {
		before[at.index] = at
	}
	a.attachments = a.attachments[:0]
	var errs []error
	for _, u := range uplinks {
		at, err := how.attach(u)
		if err != nil && u.replies && isGone(u.index) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a.attachments = append(a.attachments, at)
		if at != before[u.index] {
			log := a.deps.Log.With("interface", u.name, "mtu", u.mtu, "ingress", at.ingress, "egress", at.egress, "redirect", at.redirect)
			if at.noXDP != "" {
				log = log.With("no-xdp", at.noXDP)
			}
			log.Info("attached")
		}
	}
	return errors.Join(errs...)
}

// Detach removes everything that agents of this pin directory left in the kernel: programs, maps,
// and the VIPs on lo, unless an agent with another pin directory runs in this network namespace: then
// they are that one's. Sysctls stay as they are, because other programs may need them by now. It
// refuses while an agent runs (ErrRunning). It is no error if nothing is there.
func Detach(pin string) error {
	if _, err := os.Stat(filepath.Join(pin, "agent")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	p, err := openPins(pin)
	if err != nil {
		return err
	}
	defer p.close()
	err = newLinks(p.links()).detachOthers(nil)
	if p.other == nil {
		err = errors.Join(err, releaseVIPs(nil))
	}
	if err != nil {
		return fmt.Errorf("detach agent: %w", err)
	}
	if err := os.RemoveAll(p.root); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}
