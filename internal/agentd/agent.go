// Package agentd is what weir agent runs: it gives the agent of internal/agent its configuration, and
// reports what it counts and what does not run.
package agentd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"time"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/group"
	"weir.io/weir/internal/loads"
	"weir.io/weir/internal/metrics"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
	"weir.io/weir/internal/upkeep"
)

// Deps are what an agent's process works with.
type Deps struct {
	Version    string
	File       string // the configuration
	BPFFS      string // where the BPF file system is, or is mounted
	Socket     string // to answer on
	Attach     agent.Attach
	Interfaces []string // that tunnels come in by, in place of the file's
	Signals    *daemon.Signals
	Log        *slog.Logger
}

// process is a daemon whose configuration an agent applies.
type process struct {
	*daemon.Daemon
	agent     *agent.Agent
	sender    *loads.Sender
	events    *api.Events
	examiner  *daemon.Examiner
	first     model.Agent // the configuration that the agent's maps were made for
	directors *directors  // nil: the agent does not report by their API
	log       *slog.Logger

	mu      sync.Mutex
	running model.Config
}

// Run runs an agent until the context ends. What it set up goes on then.
func Run(ctx context.Context, deps Deps) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := deps.Log
	first, text, changes, refused := daemon.FirstConfig(ctx, deps.File, deps.Signals.Hangup)
	var lost error
	if refused != nil {
		var ran *model.Config
		ran, lost = daemon.LastRan(deps.File, store.RunningAgent, nil)
		if ran == nil || changes == nil {
			return errors.Join(refused, lost)
		}
		first, text = *ran, nil
		log.Warn("an earlier version of the configuration runs: the file's is refused", "config", deps.File, "error", refused)
	}
	if err := daemon.PrepareHost(deps.BPFFS, privilege.Agent, &first, nil, log); err != nil {
		return err
	}
	pin := daemon.PinDirectory(deps.BPFFS)
	d := daemon.New(daemon.Deps{
		Version: deps.Version, File: deps.File, Pin: pin,
		State: daemon.StateDirectory(model.Store{}), Running: store.RunningAgent, Lost: lost, Log: log,
	})
	events := api.NewEvents()
	socket := daemon.NewSocket(ctx, deps.Socket)
	a, err := agent.Open(agent.Deps{Pin: pin, Interfaces: deps.Interfaces, Attach: deps.Attach, UDPFlows: *first.Agent.UDPFlows, Log: log,
		OnEvent: daemon.ReportUpkeep(events), Parts: []upkeep.Part{d.StatePart(), socket.Part()}, OnApplied: d.NoteAgain})
	if err != nil {
		return daemon.NotOpened(pin, err)
	}
	defer a.Close()
	meter, err := a.Meter()
	if err != nil {
		return err
	}
	defer meter.Close()
	p := &process{Daemon: d, agent: a, sender: loads.NewSender(meter, log), events: events, first: first.Agent, log: log}
	defer p.sender.Close()
	p.examiner = daemon.NewExaminer(func(ctx context.Context) ([]doctor.Finding, error) {
		c := p.Config()
		if len(deps.Interfaces) > 0 {
			c.Agent.Interfaces = deps.Interfaces
		}
		return doctor.Running(ctx, doctor.Options{Config: &c, Role: doctor.Agent, BPFFS: deps.BPFFS})
	})
	d.Offer(first, text)
	// Parts that do not run are listed, and tried again; what an earlier agent has set up goes on.
	if p.apply(first) == nil {
		d.KeepOffered(first)
	}
	if refused != nil {
		d.Refuse(refused)
	}
	a.Follow(ctx)
	endReports, err := p.startReports(ctx, first.Agent.Store)
	if err != nil {
		return err
	}
	defer endReports()
	log.Info("agent runs", "config", deps.File, "pin", pin)
	server := api.NewAgentServer(p, p, log)
	server.Handle("/metrics", metrics.AgentHandler(deps.Version, p, d.Problems.All))
	server.HandleEvents(events)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer socket.Wait()
	defer cancel()
	if err := socket.Answer(nil, func(listener net.Listener) (wait func()) { return d.Serve(ctx, server, listener) }); err != nil {
		return err
	}
	// The agent of another network namespace may have the socket; this one then works without a
	// socket, until the other one ends.
	if err := socket.Open(); err != nil {
		log.Warn("nobody can ask this agent yet", "error", err)
	}
	watching.Go(func() { p.examiner.Run(ctx) })
	watching.Go(func() { p.watch(ctx) })
	d.Ready(ctx, func(ctx context.Context) error { return errors.Join(a.Alive(ctx), d.Alive(ctx)) })
	d.Follow(ctx, changes, p.apply)
	d.Stopping("ends; what it set up goes on until weir detach", 0)
	cancel()
	log.Info("agent ends; what it set up goes on until weir detach")
	return nil
}

// startReports lets the agent report its connections to the directors' etcd or to the directors, if
// their addresses are configured. They need not answer yet.
func (p *process) startReports(ctx context.Context, s model.AgentStore) (end func(), err error) {
	var to agent.Reporter
	closes := func() {}
	switch {
	case s.Etcd.Given():
		options := daemon.EtcdOptions(s.Etcd)
		options.Log = p.log
		etcd, err := group.Open(options, "")
		if err != nil {
			return nil, err
		}
		to, closes = etcd, func() { etcd.Close() }
	case s.Directors.Given():
		p.directors = newDirectors(&s.Directors, p.log)
		to = p.directors
	default:
		return closes, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.agent.Report(ctx, to, group.MaxReport) })
	if p.directors != nil {
		meter, err := p.agent.Meter() // each is for one goroutine
		if err != nil {
			cancel()
			running.Wait()
			return nil, err
		}
		running.Go(func() {
			defer meter.Close()
			p.directors.reportLoads(ctx, meter, func() bool { return p.Config().Loads.API })
		})
	}
	return func() {
		cancel()
		running.Wait()
		closes()
	}, nil
}

// Config returns the configuration that runs.
func (p *process) Config() model.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// Status also says what was sent to directors.
func (p *process) Status() (model.AgentStatus, error) {
	status, err := p.agent.Status()
	status.Loads = p.sender.Status()
	if status.Loads == nil && p.directors != nil && p.Config().Loads.API {
		status.Loads = p.directors.loadStatus()
	}
	status.Directors = p.directors.status()
	return status, err
}

// apply makes a version of the file run. The agent tries parts that do not run again.
func (p *process) apply(c model.Config) error {
	p.NoteRestart("agent.store", !reflect.DeepEqual(c.Agent.Store, p.first.Store))
	p.NoteRestart("agent.udp-flows", *c.Agent.UDPFlows != *p.first.UDPFlows)
	if err := daemon.NeedCapabilities(privilege.Agent, &c, p.log); err != nil {
		err = fmt.Errorf("%w, and start it again", err) // it may have dropped them
		p.NoteSet(err)
		return daemon.Listed(err)
	}
	err := p.agent.Set(c)
	p.Problems.Report(model.ProblemLoads, "", p.sender.Set(&c)) // tunnels are unwrapped without it, too
	p.NoteSet(err)
	p.Problems.Report(model.ProblemFile, p.File(), nil) // it is right, whatever the kernel says
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = c
	if err != nil {
		return daemon.Listed(err)
	}
	return nil
}

// watch lists what is wrong with the host, and tells what happens with the agent's file, until
// the context ends.
func (p *process) watch(ctx context.Context) {
	p.Problems.Follow(func(changes []problems.Change) { p.events.Add(daemon.ProblemEvents(changes)...) })
	tick := time.NewTicker(daemon.LookEvery)
	defer tick.Stop()
	before := p.Info()
	var idle agent.Idle
	looked := false
	for {
		info := p.Info()
		if now := p.agent.Idle(); !looked || !reflect.DeepEqual(now, idle) || !info.Changed.Equal(before.Changed) {
			looked, idle = true, now
			p.reportIdle(idle)
		}
		host, interfaces := daemon.UpkeepProblems(p.agent.Upkeep(), p.agent.NotNoticed())
		p.Problems.Replace(model.ProblemHost, append(host, p.examiner.Problems()...))
		p.Problems.Warn(model.ProblemReports, "", p.agent.NotReported())
		p.directors.warn(p.Problems)
		p.directors.warnOfLoads(p.Problems)
		p.Problems.Warn(model.ProblemLoads, "sent", p.sender.Problem())
		p.Problems.Replace(model.ProblemInterface, append(interfaces, daemon.MTUProblems(p.agent.Lowered(), "weir agent")...))
		if crowds, err := p.agent.Crowded(); err == nil { // else the status says why, too
			p.Problems.Replace(model.ProblemService, daemon.CrowdProblems(crowds))
		}
		if !info.Changed.Equal(before.Changed) {
			p.examiner.Wake()
		}
		if !info.Applied.Equal(before.Applied) {
			p.events.Add(api.Event{Kind: api.EventFile, Text: fmt.Sprintf("the agent's file was applied: it has %s", daemon.ServicesText(len(p.Config().Services)))})
		}
		before = info
		p.Say("unwraps and redirects for " + daemon.ServicesText(len(p.Config().Services)))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reportIdle lists what in the file has no effect on this host.
func (p *process) reportIdle(idle agent.Idle) {
	var none, nobody error
	if idle.NoBackend {
		none = problems.Fixed(p.Placed("services", "no address of this host is a backend's: there is nothing to do"),
			"see that this is the file of this host, and that the backends' addresses are its own")
	}
	if len(idle.NoDirector) > 0 {
		nobody = problems.Fixed(p.Placed("directors", fmt.Sprintf("it has no address of the family of %v: what comes there through tunnels is dropped", idle.NoDirector)),
			"name the directors' addresses in directors")
	}
	p.Problems.Warn(model.ProblemFile, "services", none)
	p.Problems.Report(model.ProblemFile, "directors", nobody)
}
