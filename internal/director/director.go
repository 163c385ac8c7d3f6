// Package director is what weir run runs: it makes the parts of a director, gives each the others that
// it needs, and follows the configuration file until it is told to end.
package director

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/bgp"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/datapath/checks"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/group"
	"weir.io/weir/internal/health"
	"weir.io/weir/internal/hooks"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/metrics"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/neighbor"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/reports"
	"weir.io/weir/internal/segments"
	"weir.io/weir/internal/segments/ovnhosts"
	"weir.io/weir/internal/sets"
	"weir.io/weir/internal/steering"
	"weir.io/weir/internal/store"
	"weir.io/weir/internal/upkeep"
	"weir.io/weir/web"
)

// Deps are what a director works with.
type Deps struct {
	Version     string
	File        string        // the configuration
	BPFFS       string        // where the BPF file system is, or is mounted
	Socket      string        // to answer on
	GracePeriod time.Duration // how long it forwards when it was told to end, and then detaches; 0: it ends at once, and forwarding goes on
	// ShutdownGracePeriod is the same if it was told before, by SIGUSR1, that the host shuts down.
	ShutdownGracePeriod time.Duration
	BFD                 []string // the arguments with which this program is the BFD process, but for its socket
	Signals             *daemon.Signals
	Log                 *slog.Logger
}

// Director is a daemon whose configuration the engine applies. All its parts are made by New, and none
// is replaced.
type Director struct {
	*daemon.Daemon
	log         *slog.Logger
	socket      string
	gracePeriod time.Duration
	atShutdown  time.Duration
	shutdown    <-chan os.Signal // has SIGUSR1 if the host shuts down
	handover    chan os.Signal   // has SIGUSR2 if another process takes over
	over        atomic.Bool      // nothing is to go on: its grace period is over, or it never began

	ctx       context.Context // its life, which outlasts what Run is given by the grace period
	end       context.CancelFunc
	closes    []func() // what New has opened, in this order
	notClosed error    // why the kernel's part of it could not be closed, or detached

	begins  startup
	first   model.Director // the configuration that the kernel's maps are made for
	changes <-chan config.Change

	listener   net.Listener
	group      *group.Group // nil: this director does not share its sets
	kernel     *datapath.Datapath
	goesOn     bool // packets come to backends already, through what an earlier process left
	checks     *checks.Ways
	checker    *health.Checker
	announcers announcers
	gate       *gate
	steering   *steering.Controller
	fanOut     struct {
		cpus []uint32
		none error // why there are none
	}
	bfd        *bfdSupervisor
	loads      loadReports
	reports    *reports.Intake // what agents report by the API
	engine     *engine.Engine
	controller *desired.Controller
	members    *membership
	sets       *sets.Sets
	segments   *segments.Segments
	excess     excess  // is guarded by gathering
	unknown    unknown // the same
	evpn       *evpnHosts
	ovn        *ovnhosts.Source  // tells segments
	placements engine.Placements // for explanations
	gauge      gauge

	server   *api.Server
	remote   *api.Remote
	unix     *daemon.Socket
	events   *api.Events
	examiner *daemon.Examiner
	notices  *upkeep.Hearing
	host     *upkeep.Reconciler // of this host's parts that it owns

	gathering sync.Mutex

	applying sync.Mutex    // one version of the file at a time
	refused  *model.Config // the last version, if the controller has refused it, and tries it again
}

// New makes a director with all its parts. It takes what an earlier process left in the kernel, and
// changes nothing there before Run. The order of what it opens matters:
//   - privileges are dropped before anything is read from others;
//   - the socket comes before the kernel: a process that is then refused must not change the datapath
//     of a director that runs;
//   - the stores come before the kernel, too: without them a director could not go on with it.
func New(deps Deps) (_ *Director, err error) {
	collectGarbage()
	d := &Director{log: deps.Log, socket: deps.Socket, gracePeriod: deps.GracePeriod, atShutdown: deps.ShutdownGracePeriod, shutdown: deps.Signals.Shutdown, handover: make(chan os.Signal, 1)}
	d.ctx, d.end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	lost, err := d.readFile(deps.File, deps.Signals.Hangup)
	if err != nil {
		return nil, err
	}
	if err := daemon.PrepareHost(deps.BPFFS, privilege.Run, &d.begins.file, d.begins.ran, d.log); err != nil {
		return nil, err
	}
	if d.listener, err = api.Listen(deps.Socket); err != nil {
		return nil, err
	}
	d.closeLater(func() { _ = d.listener.Close() })
	local, err := openStore(d.first.Store)
	if err != nil {
		return nil, err
	}
	d.closeLater(func() { _ = local.Close() })
	pin := daemon.PinDirectory(deps.BPFFS)
	d.Daemon = daemon.New(daemon.Deps{
		Version: deps.Version, File: deps.File, Pin: pin,
		State: daemon.StateDirectory(d.first.Store), Running: store.RunningDirector, Lost: lost, Store: local, Progress: maglev.Steps, Log: d.log,
	})
	d.closeLater(d.closeGroup)
	if err := d.chooseFirst(local); err != nil {
		return nil, err
	}
	d.closeLater(d.detachAfterGrace)
	kept, err := datapath.KeptQueues(pin)
	if err != nil {
		d.log.Warn("rules that an earlier director has left in NICs are not known", "error", err)
	}
	d.chooseFanOut()
	d.kernel, err = datapath.Open(datapath.Options{
		Pin: pin, Mode: d.first.XDP, Limits: d.first.Limits, SteeredFlows: steeredFlows(&d.first.Steering), FanOut: d.fanOut.cpus, VTEP: d.first.VTEP, InVLANs: d.begins.first.InVLANs(), Hold: true, Log: d.log,
	})
	if err != nil {
		return nil, daemon.NotOpened(pin, err)
	}
	d.closeLater(func() { d.notClosed = errors.Join(d.notClosed, d.kernel.Close()) })
	d.checks = d.kernel.Checks()
	d.closeLater(func() { d.notClosed = errors.Join(d.notClosed, d.checks.Close()) })
	// Before the first table: its backends may be where only other sources say.
	d.segments = segments.New(segments.Deps{Sink: d.kernel, Directory: daemon.StateDirectory(d.first.Store), Log: d.log})
	d.ovn = ovnhosts.New(ovnhosts.Deps{Segments: d.segments, Owner: d.Daemon.Info().Host, Log: d.log})
	d.closeLater(d.ovn.Close)
	d.steer(kept)
	d.checker = health.New(d.checks, d.log)
	d.closeLater(d.checker.Close)
	if err := d.join(deps, local); err != nil {
		return nil, err
	}
	d.notices = upkeep.Hear(func() (*upkeep.Notices, error) { return upkeep.Listen(datapath.Groups...) })
	d.closeLater(d.notices.Close)
	d.answer(deps.Version)
	d.keepHost(deps)
	return d, nil
}

// readFile reads the first version of the file. If that is refused, the director begins with the version
// that ran last. It returns why that is lost, if one was kept.
func (d *Director) readFile(file string, hangup <-chan os.Signal) (lost, err error) {
	b := &d.begins
	b.file, b.text, d.changes, err = daemon.FirstConfig(d.ctx, file, hangup)
	if err == nil {
		if err = needInterfaces(b.file); err != nil {
			err = fmt.Errorf("%s: %w", file, err)
		}
	}
	b.refused = err
	b.ran, lost = daemon.LastRan(file, store.RunningDirector, b.text)
	if b.refused != nil {
		if b.ran == nil || d.changes == nil {
			return nil, errors.Join(b.refused, lost)
		}
		b.file, b.text = *b.ran, nil
	}
	b.first, d.first = b.file, b.file.Director
	return lost, nil
}

// join makes the parts that forward and announce, and gives each of them the others that it needs.
func (d *Director) join(deps Deps, local *store.File) (err error) {
	var speaker *bgp.Speaker // tells BFD of routers, and is told by it of lost ones
	d.bfd = newBFDSupervisor(deps, func(status model.BFDStatus) { speaker.SetBFD(status) })
	speaker = bgp.New(d.bfd.setRouters, d.log)
	d.evpn = &evpnHosts{segments: d.segments}
	speaker.FollowEVPN(d.evpn.follow)
	d.announcers = announcers{speaker, hooks.New(d.log), neighbor.New(neighborGroup(d.group), d.log), d.log}
	d.gate = &gate{announcers: d.announcers, open: func() bool { return d.kernel.Attached() > 0 }, others: d.kernel.SharedSources}
	d.loads = newLoadReports(d.kernel, d.log)
	inherited := d.kernel.Inherited()
	d.goesOn = len(inherited) > 0
	d.engine = engine.New(engine.Deps{
		Forwarder: d, Checker: d.checker, Inherited: inherited, Ways: d.kernel, Loads: d.loads.aggregator, Log: d.log,
	})
	keeps := desired.Deps{
		Local: local, Engine: d.engine, Problems: controllerProblems{d}, Overrides: local, Past: local,
		Health: d.checker, Guesses: d.kernel, Log: d.log,
	}
	if d.group != nil {
		follows := d.group.FollowReports(d.ctx)
		keeps.Reports, keeps.Views = follows, d.group.FollowViews(d.ctx)
		d.reports = reports.NewIntake(d.group.OfAgents(follows), true, d.runningServices, d.loads.aggregator.Add, d.log)
	} else {
		kept := reports.NewMemory()
		keeps.Reports = kept
		d.reports = reports.NewIntake(kept, false, d.runningServices, d.loads.aggregator.Add, d.log)
	}
	d.controller = desired.New(keeps)
	d.sets = sets.New(sets.Deps{Controller: d.controller, Kernel: d.kernel, Found: d.checker.Results, Limits: d.first.Limits})
	if d.members, err = newMembership(d.ctx, d.kernel, d.group, d.whatRuns, d.settings(), d.Problems, d.log); err != nil {
		return err
	}
	d.closeLater(d.members.close)
	return nil
}

// answer makes the API.
func (d *Director) answer(version string) {
	d.events = api.NewEvents()
	bgpStatus := func() model.BGPStatus { return d.evpn.countEVPN(d.announcers.bgp.Status()) }
	d.server = api.NewServer(d, d, d.log)
	d.server.HandleSegmented("/metrics", metrics.Handler(version, d, bgpStatus, d.bfd.View, func() []model.Problem { return d.Info().Problems }, api.CallerSegments))
	d.server.HandleBGP(bgpStatus)
	d.server.HandleSets(d.sets)
	d.server.HandleSegments(segmentsAPI{d})
	d.server.HandleReports(d.reports)
	d.server.HandleExplain(d.explain)
	d.server.HandleCapture(d.capture)
	d.server.HandleFlows(d.flows)
	d.server.HandleDirectors(d.members.directors)
	d.server.HandleEvents(d.events)
	d.server.HandleLive(api.LiveSources{Datapath: d, Daemon: d, BGP: bgpStatus, Directors: d.members.directors, Events: d.events})
	d.server.HandleRing(d.ring)
	d.server.HandlePages(web.Pages())
	d.remote = api.NewRemote(d.server, d.log)
	d.closeLater(d.remote.Close) // if run has not
	d.unix = daemon.NewSocket(d.ctx, d.socket)
}

// keepHost makes the reconciler of this host's parts, and the examiner of the others.
func (d *Director) keepHost(deps Deps) {
	parts := append(d.kernel.Parts(d.notices.By), d.checks.Part(d.notices.By),
		upkeep.Part{Name: "vips", Look: d.gate.look},
		upkeep.Part{Name: "bfd", Look: d.bfd.look},
		d.StatePart(), d.unix.Part())
	d.host = upkeep.New(upkeep.Deps{Log: d.log, OnEvent: daemon.ReportUpkeep(d.events)}, parts...)
	d.examiner = daemon.NewExaminer(func(ctx context.Context) ([]doctor.Finding, error) {
		d.members.joinAgain() // by addresses that have come
		c := d.Config()
		return doctor.Running(ctx, doctor.Options{Config: &c, Role: doctor.Director, BPFFS: deps.BPFFS, Probes: d.checker.Connections, Listed: d.checker.Listed})
	})
}

// closeLater makes close call a function.
func (d *Director) closeLater(f func()) { d.closes = append(d.closes, f) }

// close closes what New has opened, the last first.
func (d *Director) close() {
	d.end()
	for _, f := range slices.Backward(d.closes) {
		f()
	}
}

// Run forwards, and follows the file, until the context ends, and the grace period after it. It is called
// once. Only an error of the first configuration ends it earlier: the engine tries later ones again.
func (d *Director) Run(ctx context.Context) error {
	err := d.run(ctx)
	d.close()
	err = errors.Join(err, d.notClosed)
	if err == nil && !d.over.Load() {
		d.log.Info("director ends; forwarding goes on until weir detach")
	}
	return err
}

// detachAfterGrace ends forwarding if nothing is to go on. The kernel's part is closed by then, and
// the store is not: with the same store no other process starts meanwhile, whose BFD process would be
// ended here.
func (d *Director) detachAfterGrace() {
	if !d.over.Load() || d.notClosed != nil {
		return
	}
	switch err := Detach(d.Pin(), d.socket); {
	case errors.Is(err, datapath.ErrRunning):
		d.log.Info("director ends; another one has taken over")
	case err != nil:
		d.notClosed = err
	default:
		d.ovn.Leave()
		d.log.Info("director ends, and forwarding with it")
	}
}

// Detach ends a director's forwarding, and after that the process that answers routers by BFD.
func Detach(pin, socket string) error {
	kept, unknown := datapath.KeptQueues(pin) // before the maps go that say it
	if err := datapath.Detach(pin); err != nil {
		return err
	}
	ended := bfd.Stop(bfd.Socket(socket))
	if ended != nil {
		ended = fmt.Errorf("end the BFD process: %w", ended)
	}
	left := errors.Join(unknown, steering.Clear(kept, steering.ByIndex))
	if left == nil { // else the next weir detach tries again
		left = datapath.NoteKeptQueues(pin, nil)
	}
	return errors.Join(ended, left)
}

// run starts the parts in an order that others rely on: the datapath forwards before routers learn of
// VIPs, and the director runs before clients of the API are answered.
func (d *Director) run(stop context.Context) error {
	signals, forget := d.hearSignals() // before stop is looked at: each later one is heard
	defer forget()
	if stop.Err() != nil {
		d.end() // it was told while New made it, and the parts do not begin
	}
	stillRuns := context.AfterFunc(stop, d.end) // there is nothing to withdraw yet
	var running sync.WaitGroup
	defer d.closeAnnouncers() // the last: everything set until then is told
	defer running.Wait()
	defer d.end()
	begins := d.begins
	d.begins = startup{} // it may be large, and is not needed after the start
	// Both have the file before it runs: the engine sets the kernel and BFD's sessions together, and reports
	// of loads may come at once. runFile sets them again if another version runs.
	d.bfd.configure(&begins.first)
	d.loads.set(&begins.first)
	d.reports.Follow(&begins.first) // before logs are judged: agents that may report can have connections anywhere
	d.followOVN(&begins.first)
	d.evpn.know(&begins.first)
	defer d.loads.receiver.Close()
	running.Go(func() { d.loads.aggregator.Run(d.ctx) })
	running.Go(func() { d.engine.Run(d.ctx) }) // start applies by it, and waits for it
	running.Go(func() { d.bfd.Run(d.ctx) })
	running.Go(func() { d.segments.Run(d.ctx) })
	used, err := d.start(&running, begins)
	if err != nil {
		if d.ctx.Err() != nil { // told to end before it began
			d.over.Store(d.kernel.Attached() == 0) // then there is no forwarding to go on
			return nil
		}
		return err
	}
	d.engine.Announce(d.gate)
	defer d.endAfterGrace(stop, stillRuns, signals)()
	d.log.Info("director runs", "config", d.File(), "services", len(used.Services), "pin", d.Pin())
	defer d.gauge.start(d.ctx, d.log)()
	defer d.remote.Close() // before the gauge and the receiver, which it reads
	d.openAPI(used.API)
	d.members.join(used.Director)
	watcher := watcher{d: d, events: d.events}
	watcher.look() // before clients are answered: every later change is an event
	running.Go(func() { watcher.run(d.ctx) })
	if err := d.unix.Answer(d.listener, func(l net.Listener) (wait func()) { return d.Serve(d.ctx, d.server, l) }); err != nil {
		d.end()
		return err
	}
	defer d.unix.Wait()
	d.host.Wake()
	running.Go(func() { d.host.Run(d.ctx, d.notices) })
	running.Go(func() { d.steering.Run(d.ctx) })
	running.Go(func() { d.examiner.Run(d.ctx) })
	d.Ready(d.ctx, d.alive)
	d.Follow(d.ctx, d.changes, d.apply)
	d.Stopping("ends", 0)
	d.end()
	return nil
}

// alive waits until nothing that changes what is forwarded is at work: a part that hangs is never done.
func (d *Director) alive(ctx context.Context) error {
	if err := errors.Join(d.engine.Alive(ctx), d.Alive(ctx)); err != nil {
		return err
	}
	d.controller.Sets() // waits for its lock
	return nil
}

// Config returns the configuration that runs.
func (d *Director) Config() model.Config { return d.engine.Desired() }

func (d *Director) runningServices() []model.Service { return d.Config().Services }

// apply makes a later version of the file run.
func (d *Director) apply(c model.Config) error {
	if err := needInterfaces(c); err != nil {
		return err
	}
	if err := daemon.NeedCapabilities(privilege.Run, &c, d.log); err != nil {
		return fmt.Errorf("%w, and start it again", err) // it may have dropped them
	}
	defer d.host.Forget() // something else should hold then
	defer d.examiner.Wake()
	d.applying.Lock()
	defer d.applying.Unlock()
	// A session that the file no longer has goes before its interface loses the program: routers would
	// take that for a failure. All else follows when the file is not refused: a refused one changes nothing.
	d.bfd.configure(&c)
	err := d.controller.SetFile(c)
	pending, refused := errors.As(err, new(*desired.PendingError)), errors.As(err, new(*desired.RefusedError))
	d.refused = nil
	if err == nil || pending {
		d.follow(&c)
	} else {
		goesOn := d.controller.File()
		d.bfd.configure(&goesOn)
		if refused {
			d.refused = &c
		}
	}
	if pending || refused {
		return daemon.Listed(err)
	}
	return err
}

// follow makes the parts that the controller does not know follow a version of the file.
func (d *Director) follow(c *model.Config) {
	d.warnOfRestart(c.Director)
	d.bfd.configure(c)
	d.openAPI(c.API)
	d.loads.set(c)
	d.reports.Follow(c)
	d.followOVN(c)
	d.evpn.know(c)
	d.members.join(c.Director)
}

// followLate does so with a version that the controller has refused, and has taken by now.
func (d *Director) followLate() {
	if !d.applying.TryLock() {
		return // a later version comes, which may take long
	}
	defer d.applying.Unlock()
	if d.refused == nil {
		return
	}
	if c := d.controller.File(); reflect.DeepEqual(c, *d.refused) {
		d.refused = nil
		d.follow(&c)
	}
}

// Set is the engine's way to the kernel.
func (d *Director) Set(table model.Table) error {
	d.bfd.beforeSet(table.Interfaces)
	err := d.kernel.Set(table)
	if err == nil {
		d.bfd.afterSet(table.Interfaces)
	}
	d.noteTaken(err)
	return err
}

// noteTaken remembers whether the kernel took the desired state, and if not, the owners whose
// stored sets do not run.
func (d *Director) noteTaken(err error) {
	if err != nil {
		for _, owner := range d.controller.Behind() {
			err = fmt.Errorf("%w; the set of owner %q is stored and does not run", err, owner)
		}
	}
	d.NoteSet(err)
}

// openAPI opens the API at the configured address. The director forwards even if that fails.
func (d *Director) openAPI(c model.API) {
	d.Problems.Report(model.ProblemAPI, "", d.remote.Set(c))
}

// needInterfaces refuses a file that would take the program off every interface.
func needInterfaces(c model.Config) error {
	if lacks := c.Needs(model.Roles{Director: true}); len(lacks) > 0 {
		return lacks
	}
	return nil
}

// warnOfRestart lists which changes wait for the next start.
func (d *Director) warnOfRestart(now model.Director) {
	first := &d.first
	d.NoteRestart("director.limits", now.Limits != first.Limits)
	d.NoteRestart("director.xdp", now.XDP != first.XDP)
	// The maps have room for the flows of the start.
	d.NoteRestart("director.steering", steeredFlows(&now.Steering) > steeredFlows(&first.Steering))
	d.NoteRestart("director.fan-out", now.FanOut != first.FanOut)
	d.NoteRestart("director.vtep", now.VTEP.Given() != first.VTEP.Given())
	d.NoteRestart("director.store", !reflect.DeepEqual(now.Store, first.Store))
}

// openStore opens a director's own store. Without a store the logs would be lost with the process,
// and connections with them: so there always is one.
func openStore(s model.Store) (*store.File, error) {
	opened, err := store.OpenFile(daemon.StateDirectory(s), store.OwnerFile)
	switch {
	case errors.As(err, new(*store.CorruptError)):
		return nil, err // it says what to do
	case errors.Is(err, store.ErrInUse):
		return nil, fmt.Errorf("%w; name another one in director.store.directory", err)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return nil, fmt.Errorf("%w; weir run keeps its state there: make it writable, or name another directory in director.store.directory", err)
	}
	return opened, err
}

// openGroup returns the store that a group shares, or nil if none is configured. It need
// not answer yet.
func openGroup(s model.Store, list *problems.List, log *slog.Logger) (*group.Group, error) {
	if !s.Etcd.Given() {
		return nil, nil
	}
	options := daemon.EtcdOptions(s.Etcd)
	options.Log, options.Warn = log, list.Warn
	return group.Open(options, filepath.Join(daemon.StateDirectory(s), "group"))
}

// closeGroup ends the connection to the group's store, if there is one.
func (d *Director) closeGroup() {
	if d.group != nil {
		_ = d.group.Close()
	}
}

// garbage is how much garbage a director may have before it is collected, in percent of the memory
// in use. That memory is nearly all tables, which stay: with thousands of services hundreds of
// megabytes, and by default there could be as much garbage. A change makes little garbage, so
// collecting twice as often costs little, although its cost grows with the memory in use.
const garbage = 50

// collectGarbage sets that limit, unless the environment sets another one.
func collectGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
