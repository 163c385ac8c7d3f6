package agent

import (
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

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// Options are what an agent must know before it has a configuration.
type Options struct {
	Pin        string   // directory on a BPF file system, shared with a director
	Interfaces []string // where tunnels come in; empty: the configuration says where
	Attach     Attach   // empty: AttachAuto
	UDPFlows   uint32   // how many flows are remembered; 0: every datagram stays where it arrives
	Log        *slog.Logger

	// Tell is called with what becomes of parts of the host that are not as they should be, unless
	// it is nil. Parts are further parts that the agent's process owns.
	Tell  func(upkeep.Event)
	Parts []upkeep.Part
	// Applied is called each time that the agent has applied a configuration again by itself, with
	// the reason why it does not run, or nil if it runs.
	Applied func(model.Config, error)
}

// Agent is this host's agent. It works on the network namespace of the thread
// that calls it.
type Agent struct {
	options      Options
	pins         *pins
	version      string // of the maps' ABI
	objects      *bpfObjects
	flows        *udpMemory
	pods         *podMemory
	reasonCounts *reasonMemory
	noTCX        bool // behave as before Linux 6.6
	sockets      sockets
	watched      atomic.Pointer[watched] // the backends whose loads are measured

	keeper *upkeep.Keeper

	telling sync.Mutex
	untold  error // why directors do not learn of connections
	blind   error // why they do not learn which servers drop datagrams

	mu          sync.Mutex
	closed      bool            // it owns nothing any more
	notices     *upkeep.Notices // nil: Follow was not called
	links       *links
	redirector  *redirector // nil: nothing has been redirected here
	given       bool        // there is a configuration
	config      model.Config
	seen        facts // when the configuration was last applied, or tried
	problem     error // why it does not run as a whole
	tried       time.Time
	planned     bool // what follows is what the host should have
	plan        plan
	tables      tables              // of that plan
	former      formerPeers         // of services' backends
	comparison  contents.Comparison // of what the maps have
	uplinks     []uplink
	attachments []attachment
	idle        Idle
	crowds      crowds
	counting    time.Duration // when flows of UDP are counted next
	defaults    defaultRoutes
	mtus        upkeep.MTUs // that the uplinks have had
}

// Open loads the programs and adopts what an earlier process left pinned. Until
// Set is called nothing changes. Errors: ErrRunning, ErrNoBPFFS.
func Open(options Options) (*Agent, error) {
	if options.Attach == "" {
		options.Attach = AttachAuto
	}
	if err := options.Attach.Validate(); err != nil {
		return nil, err
	}
	spec, err := loadBpf()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	p, err := openPins(options.Pin)
	if err != nil {
		return nil, err
	}
	if err := p.lockNamespace(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	flows, err := openFlows(p.state(), spec, options.UDPFlows)
	if err != nil {
		_ = p.close()
		return nil, err
	}
	pods, err := openPods(p.state(), spec)
	if err != nil {
		return nil, errors.Join(err, flows.giveUp(), p.close())
	}
	reasons, err := openReasons(p, spec)
	if err != nil {
		return nil, errors.Join(err, pods.giveUp(), flows.giveUp(), p.close())
	}
	replacements := pods.replacements()
	maps.Copy(replacements, flows.replacements())
	maps.Copy(replacements, reasons.replacements())
	objects, version, err := load(p, spec, replacements, options.Log)
	if err != nil {
		return nil, errors.Join(err, reasons.giveUp(), pods.giveUp(), flows.giveUp(), p.close())
	}
	s, err := openSockets()
	if err != nil {
		return nil, errors.Join(err, objects.Close(), reasons.close(), pods.close(), flows.close(), p.close())
	}
	a := &Agent{options: options, pins: p, links: newLinks(p.links()), version: version, objects: objects, flows: flows, pods: pods, reasonCounts: reasons, sockets: s, former: formerPeers{}}
	tell := options.Tell
	if tell == nil {
		tell = func(upkeep.Event) {}
	}
	a.keeper = upkeep.New(options.Log, tell, a.parts()...)
	return a, nil
}

// Close ends the process's part. The programs go on as they were set, and VIPs and sysctls stay:
// see Detach.
func (a *Agent) Close() error {
	a.mu.Lock() // a look of Follow may be under way
	defer a.mu.Unlock()
	a.closed = true
	a.sockets.close()
	if a.redirector != nil {
		_ = a.redirector.Close()
	}
	return errors.Join(a.links.close(), a.objects.Close(), a.reasonCounts.close(), a.pods.close(), a.flows.close(), a.pins.close())
}

// Set makes the host do what the configuration says. Everything new is in place before anything old
// goes. After an error the host does part of it, and Follow does the rest as soon as possible. It
// is no error that something that is asked for is not there: the agent waits for it.
func (a *Agent) Set(config model.Config) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.config, a.given = config, true
	a.defaults.forget()
	a.keeper.Forget()
	f, err := a.look()
	if err != nil {
		a.problem, a.tried = err, time.Now()
		return err
	}
	return a.try(f)
}

// try does what Set does, with the last configuration.
func (a *Agent) try(f facts) error {
	a.seen, a.tried = f, time.Now()
	a.problem = a.set(f)
	return a.problem
}

func (a *Agent) set(f facts) error {
	if !a.pins.inPlace() {
		if err := a.pinAllAgain(); err != nil {
			return err
		}
	}
	h := host{addresses: make(map[netip.Addr]bool, len(f.addresses)), mtu: smallestMTU(f.uplinks)}
	for address := range f.addresses {
		h.addresses[address] = true
	}
	h.holders = f.addresses
	h.elsewhere = f.elsewhere
	p, err := newPlan(a.config, h)
	if err != nil {
		return err
	}
	a.watched.Store(newWatched(a.config, func(at netip.Addr) bool { return h.addresses[at] || h.elsewhere.addresses[at] }))
	if err := a.apply(p, f.uplinks); err != nil {
		return err
	}
	a.noteIdle(p, h.addresses)
	return nil
}

// facts are what Set looks at besides its configuration.
type facts struct {
	addresses map[netip.Addr]int // of this host: index of the interface
	others    map[netip.Addr]int // these without VIPs on lo, which the agent manages, and without loopback's own
	uplinks   []uplink
	elsewhere elsewhere
	waits     []wait // what is asked for and not there; not compared
}

// equal says whether the same has to be done. What is waited for does not matter.
func (f facts) equal(o facts) bool {
	return maps.Equal(f.others, o.others) && slices.Equal(f.uplinks, o.uplinks) &&
		maps.Equal(f.elsewhere.addresses, o.elsewhere.addresses) &&
		slices.Equal(f.elsewhere.namespaces, o.elsewhere.namespaces)
}

func (a *Agent) look() (facts, error) {
	at, err := addresses()
	if err != nil {
		return facts{}, err
	}
	uplinks, waits, err := findUplinks(a.interfaces(a.config), a.config, at, a.wasUplink, func() ([]int, error) { return a.defaults.list(time.Now()) })
	if err != nil {
		return facts{}, err
	}
	elsewhere, err := findNamespaces(a.config.Agent.Namespaces, a.options.Log)
	return facts{at, a.withoutVIPs(at), uplinks, elsewhere, waits}, err
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

func (a *Agent) interfaces(config model.Config) []string {
	if len(a.options.Interfaces) > 0 {
		return a.options.Interfaces
	}
	return config.Agent.Interfaces
}

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
	if err := raiseSysctls(neededSysctls(in, p.quiet()), a.options.Log); err != nil {
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
		a.flows.takeOver(),
		a.pods.takeOver(),
		a.reasonCounts.takeOver(),
		a.agePods(),
		a.countDatagrams(),
		forgetOtherFormats(a.pins.state()),
		a.pins.removeOtherMaps(a.version))
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
	return &attacher{links: a.links, objects: a.objects, redirector: a.redirector, how: a.options.Attach,
		director: a.plan.director, serves: a.plan.serves(), noTCX: a.noTCX}
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
			log := a.options.Log.With("interface", u.name, "mtu", u.mtu, "ingress", at.ingress, "egress", at.egress, "redirect", at.redirect)
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
	if p.lockNamespace() == nil {
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
