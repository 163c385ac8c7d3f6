package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bgp"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/health"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/hooks"
	"weir.io/weir/internal/logs"
	"weir.io/weir/internal/metrics"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/neighbor"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/store"
	"weir.io/weir/internal/upkeep"
	"weir.io/weir/web"
)

type runOptions struct {
	file, bpffs, socket string
	drain               drain
	log                 logs.Flags
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run a director",
		Long: "run forwards what the file says. It follows the file: a change is applied at once,\n" +
			"or on SIGHUP; a bad file changes nothing and is logged. Forwarding goes on when the\n" +
			"process ends, and the next one takes it over; weir detach ends it. With --drain,\n" +
			"SIGTERM ends it too, after a while: a second SIGTERM ends only the process.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(&o.log, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.drain.wait < 0 {
				return usagef("--drain %v is less than nothing", o.drain.wait)
			}
			return runDirector(cmd.Context(), &o, log)
		},
	}
	cmd.Flags().StringVarP(&o.file, "config", "c", defaultConfig, "configuration `file`")
	cmd.Flags().StringVar(&o.socket, "socket", api.DefaultSocket, "unix `socket` to answer on")
	cmd.Flags().DurationVar(&o.drain.wait, "drain", 0, "on SIGTERM forward for this `time`, then detach; 0: end at once, forwarding goes on")
	addBPFFS(cmd, &o.bpffs)
	o.log.Add(cmd)
	return cmd
}

func runDirector(ctx context.Context, o *runOptions, log *slog.Logger) error {
	collect()
	ctx, cancel := o.drain.context(ctx, log)
	defer cancel()
	first, text, changes, err := firstConfig(ctx, o.file)
	if err == nil {
		if err = needInterfaces(first); err != nil {
			err = fmt.Errorf("%s: %w", o.file, err)
		}
	}
	refused := err
	ran, lost := lastRan(o.file, store.RunningDirector, text)
	if refused != nil && ran != nil && changes != nil {
		first, text = *ran, nil
	} else if refused != nil {
		return errors.Join(refused, lost)
	}
	if err := prepareHost(o.bpffs, privilege.Run, &first, log); err != nil {
		return err
	}
	// The socket comes before the kernel: a process that is then refused must not change the
	// datapath of a running director.
	listener, err := api.Listen(o.socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	local, err := openStore(first.Director.Store, log)
	if err != nil {
		return err
	}
	defer local.Close()
	pin := pinDirectory(o.bpffs)
	self := newDaemon(o.file, pin, log)
	group, err := openGroup(first.Director.Store, self.problems, log)
	if err != nil {
		return err
	}
	if group != nil {
		defer group.Close()
	}
	kernel, err := datapath.Open(datapath.Options{
		Pin: pin, Mode: first.Director.XDP, Limits: first.Director.Limits, Hold: true, Log: log,
	})
	if err != nil {
		return notOpened(pin, err)
	}
	checks := kernel.Checks()
	checker := health.New(checks, log)
	speaker := bgp.New(log)
	d := &director{
		daemon: self, kernel: kernel, announcers: announcers{speaker, hooks.New(log), neighbor.New(joinGroup(group), log)}, bfd: newBFDKeeper(o, speaker.SetBFD, log),
		first: first.Director, drain: &o.drain, local: local, group: group, checks: checks, checker: checker,
	}
	d.refused = refused
	d.problems.Warn(model.ProblemStore, "running", lost)
	speaker.OnRouters(d.bfd.meet)
	err = d.run(ctx, first, text, changes, listener)
	checker.Close()
	err = errors.Join(err, checks.Close(), kernel.Close())
	if err == nil {
		err = endForwarding(o, pin, log)
	}
	return err
}

// endForwarding detaches a director that has drained.
func endForwarding(o *runOptions, pin string, log *slog.Logger) error {
	if !o.drain.over.Load() {
		log.Info("director ends; forwarding goes on until weir detach")
		return nil
	}
	err := datapath.Detach(pin)
	if errors.Is(err, datapath.ErrRunning) {
		log.Info("director ends; another one has taken over")
		return nil
	}
	if err == nil {
		err = endBFD(o.socket)
		log.Info("director ends, and forwarding with it")
	}
	return err
}

// director is a daemon whose configuration the engine applies.
type director struct {
	*daemon
	kernel     *datapath.Datapath
	announcers announcers
	bfd        *bfdKeeper
	logs       func() map[model.ServiceID]model.LogStatus
	first      model.Director // the configuration that the kernel's maps were made for
	gauge      gauge
	drain      *drain
	local      *store.File
	group      *store.Etcd // nil: this director does not share its sets
	refused    error       // why it did not begin with the file
	goesOn     bool        // packets come to backends already, through what an earlier process left
	keeper     *desired.Keeper
	shares     *sharing
	loads      *loadReports
	presence   presence
	remote     *api.Remote
	host       atomic.Pointer[upkeep.Keeper] // of this host's parts that it owns
	examiner   *examiner
	grouped    grouped
	gathering  sync.Mutex

	checks  *datapath.Checks
	checker *health.Checker
	healthy func() map[model.ServiceID]model.ServiceHealth

	placements engine.Placements // for explanations
	preview    func(model.Config, engine.Logs) model.Table
}

// Status is the API's way to the kernel.
func (d *director) Status() (model.DatapathStatus, error) {
	logs := d.logs()
	status, err := d.kernel.Status()
	if err != nil {
		return status, err
	}
	maps.Copy(logs, d.logs()) // of services that came meanwhile; those that left are there already
	status.CPUs = d.gauge.cpus()
	status.Upkeep = d.hostStatus()
	status.Agents = d.keeper.Agents()
	status.Peers, status.Strangers = d.shares.status()
	status.Hooks = d.announcers.hooks.Status()
	status.Neighbor = d.announcers.neighbor.Status()
	status.Refused = d.remote.CountRefused()
	left := d.keeper.Left()
	for _, cause := range history.Causes {
		status.Left = append(status.Left, model.Tallied{Name: string(cause), Count: left[cause]})
	}
	status.Probes, status.RedirectProbes = d.checker.Probes(), d.checker.RedirectProbes()
	if status.CheckPackets, err = d.checks.Sent(); err != nil {
		return status, fmt.Errorf("read what became of health checks: %w", err)
	}
	overrides := d.keeper.Overridden()
	found, healthy, strained := d.checker.Results(), d.healthy(), d.keeper.Strained()
	for i := range status.Services {
		s := &status.Services[i]
		id := model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}
		s.Log = logs[id]
		addHealth(s, id, healthy, found)
		addStrain(s, id, strained)
		addOverrides(s, overrides)
	}
	config := d.Config()
	d.loads.add(&status, &config)
	return status, nil
}

// addHealth adds what probes say to what the kernel does.
func addHealth(s *model.ServiceStatus, id model.ServiceID, healthy map[model.ServiceID]model.ServiceHealth, found map[model.Target]model.BackendHealth) {
	if of, checked := healthy[id]; checked {
		s.Health = &of
	}
	for i := range s.Backends {
		b := &s.Backends[i]
		target := model.Target{Service: id, Backend: netip.AddrPortFrom(b.Address, b.Port)}
		if of, checked := found[target]; checked {
			b.Health = &of
		}
		target.Redirect = true
		if of, asked := found[target]; asked {
			b.Redirect = &model.BackendRedirect{
				Able: b.Mode == model.Redirect, Since: of.Since, Probed: of.Probed, Took: of.Took, Reason: of.Reason, Detail: of.Detail,
			}
		}
	}
}

// addStrain adds what agents report about strained backends.
func addStrain(s *model.ServiceStatus, id model.ServiceID, strained map[model.Target]model.BackendStrain) {
	for i := range s.Backends {
		b := &s.Backends[i]
		if of, is := strained[model.Target{Service: id, Backend: netip.AddrPortFrom(b.Address, b.Port)}]; is {
			b.Strain = &of
		}
	}
}

// addOverrides adds the clients that have overridden the states of the file's backends.
func addOverrides(s *model.ServiceStatus, list []model.BackendOverride) {
	for i := range s.Backends {
		b := &s.Backends[i]
		if o := overrideOf(list, s.Name, b.Name); o != nil {
			b.Override = o
		}
	}
}

// Set is the engine's way to the kernel.
func (d *director) Set(table model.Table) error {
	d.bfd.before(table.Interfaces)
	err := d.kernel.Set(table)
	if err == nil {
		d.bfd.after(table.Interfaces)
	}
	d.noteTaken(err)
	return err
}

// noteTaken remembers whether the kernel took the desired state, and if not, the owners whose
// stored sets do not run.
func (d *director) noteTaken(err error) {
	if err != nil && d.keeper != nil {
		for _, owner := range d.keeper.Behind() {
			err = fmt.Errorf("%w; the set of owner %q is stored and does not run", err, owner)
		}
	}
	d.noteSet(err)
}

// run applies the configurations until the context ends. Only an error of the first one ends it
// earlier: the engine tries later ones again.
func (d *director) run(ctx context.Context, first model.Config, text []byte, changes <-chan config.Change, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	inherited := d.kernel.Inherited()
	d.goesOn = len(inherited) > 0
	d.loads = newLoadReports(d.kernel, d.log)
	engine := engine.New(engine.Deps{
		Forwarder: d, Checker: d.checker, Inherited: inherited, Ways: d.kernel, Loads: d.loads.book, Log: d.log,
	})
	keeps := desired.Deps{
		Local: d.local, Engine: engine, Problems: keeperList{d}, Overrides: d.local, Past: d.local,
		Health: d.checker, Guesses: d.kernel, Log: d.log,
	}
	if d.group != nil {
		keeps.Reports, keeps.Views = d.group.FollowReports(ctx), d.group.FollowViews(ctx)
	}
	d.keeper = desired.New(keeps)
	d.noteDamaged(d.local.Damaged())
	d.keep = d.keepRunning
	d.examiner = newExaminer(d.examineHost)
	d.running, d.logs, d.healthy, d.preview = engine.Desired, engine.LogStatus, engine.HealthStatus, engine.Preview
	d.apply = func(c model.Config) error {
		if err := needInterfaces(c); err != nil {
			return err
		}
		if err := needCapabilities(privilege.Run, &c, d.log); err != nil {
			return fmt.Errorf("%w, and start it again", err) // it may have dropped them
		}
		d.warnOfRestart(c.Director)
		d.bfd.want(&c)
		d.openAPI(c.API)
		d.loads.set(&c)
		if host := d.host.Load(); host != nil {
			defer host.Forget() // something else should hold then
		}
		defer d.examiner.wake()
		d.joinGroup(c.Director)
		return d.setFile(c)
	}
	var err error
	if d.shares, err = newSharing(ctx, d.kernel, d.group, d.log); err != nil {
		cancel()
		return err
	}
	defer d.shares.close()
	defer d.presence.close()
	var running sync.WaitGroup
	defer d.endAnnouncing() // the last: everything set until then is told
	defer running.Wait()
	defer cancel()
	d.bfd.want(&first)
	d.loads.set(&first)
	defer d.loads.receiver.Close()
	running.Go(func() { d.loads.book.Run(ctx) })
	running.Go(func() { engine.Run(ctx) })
	running.Go(func() { d.bfd.Run(ctx) })
	if err := d.start(ctx, &running, first, text); err != nil {
		if ctx.Err() != nil {
			return nil // told to end before it began
		}
		return err
	}
	notices, err := upkeep.Listen(datapath.Groups...)
	if err != nil {
		return err
	}
	defer notices.Close()
	gate := &gate{announcers: d.announcers, open: func() bool { return d.kernel.Attached() > 0 }}
	engine.Announce(gate) // not earlier: see begin
	d.drain.begins = d.withdraw
	d.drain.runs.Store(true)
	d.log.Info("director runs", "config", d.info.File, "services", len(first.Services), "pin", d.info.Pin)
	gauge, end := startGauge(ctx, d.log)
	defer end()
	d.gauge = gauge
	server := api.NewServer(d, d, d.log)
	d.presence.group, d.presence.run, d.presence.settings = d.group, d.whatRuns, d.settings()
	server.Handle("/metrics", metrics.Handler(version, d, d.announcers.bgp.Status, d.bfd.View, func() []model.Problem { return d.Info().Problems }))
	server.HandleBGP(d.announcers.bgp.Status)
	server.HandleSets(&sets{planner: planner{d.keeper, d.kernel, d.checker.Results, d.first.Limits}, reading: api.NewReading()})
	server.HandleExplain(d.explain)
	server.HandleCapture(d.capture)
	server.HandleFlows(d.flows)
	server.HandleDirectors(d.presence.directors)
	events := api.NewEvents()
	server.HandleEvents(events)
	server.HandleLive(api.LiveSources{Datapath: d, Daemon: d, BGP: d.announcers.bgp.Status, Directors: d.presence.directors, Events: events})
	server.HandleRing(d.ring)
	server.HandlePages(web.Pages())
	d.remote = api.NewRemote(server, d.log)
	defer d.remote.Close()
	d.openAPI(first.API)
	d.joinGroup(first.Director)
	watch := d.watch(events)
	running.Go(func() { watch(ctx) })
	socket := &keptSocket{path: listener.Addr().String(), ctx: ctx}
	if err := socket.answer(listener, func(l net.Listener) (wait func()) { return d.serve(ctx, server, l) }); err != nil {
		return err
	}
	defer socket.wait()
	d.keepHost(notices, events, gate, socket)
	running.Go(func() { d.runHost(ctx, notices) })
	d.examiner.start(ctx, &running)
	d.follow(ctx, changes)
	cancel()
	return nil
}

// Info also says which state of the group is followed, and what does not run now.
func (d *director) Info() api.Info {
	d.gather()
	info := d.daemon.Info()
	info.Revision = d.keeper.Revision()
	return info
}

// openAPI opens the API at the configured address. The director forwards even if that fails.
func (d *director) openAPI(c model.API) {
	d.problems.Report(model.ProblemAPI, "", d.remote.Set(c))
}

// setFile makes a version of the file run. The engine lists what the kernel does not take.
func (d *director) setFile(c model.Config) error {
	err := d.keeper.SetFile(c)
	if errors.As(err, new(*desired.PendingError)) || errors.As(err, new(*desired.RefusedError)) {
		return listedError{err}
	}
	return err
}

// needInterfaces refuses a file that would take the program off every interface: an agent's file,
// or a key lost in an edit.
func needInterfaces(c model.Config) error {
	if len(c.Director.Interfaces) == 0 {
		return errors.New("director.interfaces: is empty; name those that clients' packets come in by")
	}
	return nil
}

// warnOfRestart lists which changes wait for the next start.
func (d *director) warnOfRestart(now model.Director) {
	for _, part := range []struct {
		key     string
		changed bool
	}{
		{"director.limits", now.Limits != d.first.Limits},
		{"director.xdp", now.XDP != d.first.XDP},
		{"director.store", !reflect.DeepEqual(now.Store, d.first.Store)},
	} {
		d.noteRestart(part.key, part.changed)
	}
}
