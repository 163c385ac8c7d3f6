package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/loads"
	"weir.io/weir/internal/logs"
	"weir.io/weir/internal/metrics"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
	"weir.io/weir/internal/upkeep"
)

type agentOptions struct {
	file, bpffs, socket, attach string
	interfaces                  []string
	log                         logs.Flags
}

func newAgent() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent on a backend's host",
		Long: "agent unwraps what directors send by ipip and gue, holds the VIPs on lo, and clamps\n" +
			"the MSS of what they offer. It follows its file. What it set up goes on when it\n" +
			"ends; weir detach removes it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(&o.log, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return runAgent(cmd.Context(), o, log)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "config", "c", defaultConfig, "configuration `file`")
	flags.StringVar(&o.socket, "socket", api.DefaultAgentSocket, "unix `socket` to answer on")
	flags.StringVar(&o.attach, "attach", string(agent.AttachAuto), "how packets are caught: auto, xdp or tc")
	flags.StringSliceVar(&o.interfaces, "interface", nil, "`interfaces` that tunnels come in by, instead of the file's")
	addBPFFS(cmd, &o.bpffs)
	o.log.Add(cmd)
	return cmd
}

func runAgent(ctx context.Context, o agentOptions, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, text, changes, refused := firstConfig(ctx, o.file)
	var ran *model.Config
	var lost error
	if refused != nil {
		ran, lost = lastRan(o.file, store.RunningAgent, nil)
		if ran == nil || changes == nil {
			return errors.Join(refused, lost)
		}
		first, text = *ran, nil
	}
	if err := prepareHost(o.bpffs, privilege.Agent, &first, log); err != nil {
		return err
	}
	pin := pinDirectory(o.bpffs)
	d := newDaemon(o.file, pin, log)
	events := api.NewEvents()
	socket := &keptSocket{path: o.socket, ctx: ctx}
	a, err := agent.Open(agent.Options{Pin: pin, Interfaces: o.interfaces, Attach: agent.Attach(o.attach), UDPFlows: *first.Agent.UDPFlows, Log: log,
		Tell: tellUpkeep(events), Parts: []upkeep.Part{d.ranPart(), socket.part()}, Applied: d.noteAgain})
	if err != nil {
		return notOpened(pin, err)
	}
	defer a.Close()
	meter, err := a.Meter()
	if err != nil {
		return err
	}
	defer meter.Close()
	reporting := meteredAgent{a, loads.NewSender(meter, log)}
	defer reporting.sender.Close()
	newAgentDaemon(d, reporting, first.Agent)
	d.keep = func(text []byte) { d.saveRunning(stateDirectory(model.Store{}), store.RunningAgent, text) }
	d.problems.Warn(model.ProblemStore, "running", lost)
	d.offer(first, text)
	// Parts that do not run are listed, and tried again; what an earlier agent has set up goes on.
	if d.apply(first) == nil {
		d.keepOffered(first)
	}
	if refused != nil {
		d.problems.Report(model.ProblemFile, d.info.File, refused)
	}
	if err := a.Follow(ctx); err != nil {
		return err
	}
	endReports, err := startReports(ctx, a, first.Agent.Store, log)
	if err != nil {
		return err
	}
	defer endReports()
	log.Info("agent runs", "config", o.file, "pin", pin)
	server := api.NewAgentServer(reporting, d, log)
	server.Handle("/metrics", metrics.AgentHandler(version, reporting, d.problems.All))
	server.HandleEvents(events)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer socket.wait()
	defer cancel()
	if err := socket.answer(nil, func(listener net.Listener) (wait func()) { return d.serve(ctx, server, listener) }); err != nil {
		return err
	}
	// The agent of another network namespace may have the socket; this one then works without a
	// socket, until the other one ends.
	if err := socket.open(); err != nil {
		log.Warn("nobody can ask this agent yet", "error", err)
	}
	examiner := newExaminer(examineAgent(d, o.interfaces))
	examiner.start(ctx, &watching)
	watching.Go(func() { watchAgent(ctx, d, reporting, examiner, events) })
	d.follow(ctx, changes)
	cancel()
	log.Info("agent ends; what it set up goes on until weir detach")
	return nil
}

// noteAgain remembers the result of a configuration that the agent has tried again by itself.
func (d *daemon) noteAgain(c model.Config, err error) {
	if d.noteSet(err); err == nil {
		d.keepOffered(c)
	}
}

// startReports lets the agent report its connections to the directors' etcd, if its address is
// configured. The etcd need not answer yet.
func startReports(ctx context.Context, a *agent.Agent, s model.AgentStore, log *slog.Logger) (end func(), err error) {
	if !s.Etcd.Given() {
		return func() {}, nil
	}
	options := etcdOptions(s.Etcd)
	options.Log = log
	to, err := store.OpenEtcd(options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { a.Report(ctx, to, store.MaxReport) })
	return func() {
		cancel()
		running.Wait()
		to.Close()
	}, nil
}

// newAgentDaemon lets the agent apply the daemon's configuration.
func newAgentDaemon(d *daemon, a meteredAgent, began model.Agent) {
	var mu sync.Mutex
	var running model.Config
	d.apply = func(c model.Config) error {
		d.noteRestart("agent.store", !reflect.DeepEqual(c.Agent.Store, began.Store))
		d.noteRestart("agent.udp-flows", *c.Agent.UDPFlows != *began.UDPFlows)
		if err := needCapabilities(privilege.Agent, &c, d.log); err != nil {
			err = fmt.Errorf("%w, and start it again", err) // it may have dropped them
			d.noteSet(err)
			return listedError{err}
		}
		err := a.Set(c)
		d.problems.Report(model.ProblemLoads, "", a.sender.Set(&c)) // tunnels are unwrapped without it, too
		d.noteSet(err)
		d.problems.Report(model.ProblemFile, d.info.File, nil) // it is right, whatever the kernel says
		mu.Lock()
		defer mu.Unlock()
		running = c // parts that do not run yet are tried again
		if err != nil {
			return listedError{err}
		}
		return nil
	}
	d.running = func() model.Config {
		mu.Lock()
		defer mu.Unlock()
		return running
	}
}

// watchAgent lists what is wrong with the host, and tells what happens with the agent's file, until
// the context ends.
func watchAgent(ctx context.Context, d *daemon, a meteredAgent, examiner *examiner, events *api.Events) {
	d.problems.Follow(func(changes []problems.Change) { events.Add(problemEvents(changes)...) })
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	applied := d.Info().Applied
	var idle agent.Idle
	looked := false
	for {
		if now, at := a.Idle(), d.Info().Applied; !looked || !reflect.DeepEqual(now, idle) || !at.Equal(applied) {
			looked, idle = true, now
			d.reportIdle(idle)
		}
		host, interfaces := upkeepProblems(a.Upkeep())
		d.problems.Replace(model.ProblemHost, append(host, examiner.problems()...))
		d.problems.Warn(model.ProblemReports, "", a.Untold())
		d.problems.Warn(model.ProblemLoads, "sent", a.sender.Problem())
		d.problems.Replace(model.ProblemInterface, append(interfaces, ofLowered(a.Lowered(), "weir agent")...))
		if crowds, err := a.Crowded(); err == nil { // else the status says why, too
			d.problems.Replace(model.ProblemService, ofCrowds(crowds))
		}
		if now := d.Info().Applied; !now.Equal(applied) {
			applied = now
			examiner.wake()
			events.Add(api.Event{Kind: api.EventFile, Text: fmt.Sprintf("the agent's file was applied: it has %s", servicesText(len(d.Config().Services)))})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reportIdle lists what in the file has no effect on this host.
func (d *daemon) reportIdle(idle agent.Idle) {
	var none, nobody error
	if idle.NoBackend {
		none = problems.Fixed(d.placed("services", "no address of this host is a backend's: there is nothing to do"),
			"see that this is the file of this host, and that the backends' addresses are its own")
	}
	if len(idle.NoDirector) > 0 {
		nobody = problems.Fixed(d.placed("directors", fmt.Sprintf("it has no address of the family of %v: what comes there through tunnels is dropped", idle.NoDirector)),
			"name the directors' addresses in directors")
	}
	d.problems.Warn(model.ProblemFile, "services", none)
	d.problems.Report(model.ProblemFile, "directors", nobody)
}
