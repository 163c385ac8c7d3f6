package main

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/loads"
	"weir.io/weir/internal/logs"
	"weir.io/weir/internal/metrics"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/store"
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
	first, _, changes, err := firstConfig(ctx, o.file)
	if err != nil {
		return err
	}
	if err := prepareHost(o.bpffs, privilege.Agent, &first, log); err != nil {
		return err
	}
	pin := pinDirectory(o.bpffs)
	a, err := agent.Open(agent.Options{Pin: pin, Interfaces: o.interfaces, Attach: agent.Attach(o.attach), UDPFlows: *first.Agent.UDPFlows, Log: log})
	if err != nil {
		return err
	}
	defer a.Close()
	meter, err := a.Meter()
	if err != nil {
		return err
	}
	defer meter.Close()
	reporting := meteredAgent{a, loads.NewSender(meter, log)}
	defer reporting.sender.Close()
	d := newAgentDaemon(newDaemon(o.file, pin, log), reporting, first.Agent)
	if err := d.apply(first); err != nil {
		return err
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
	// The agent of another network namespace may have the socket; this one then
	// does its work without.
	if listener, err := api.Listen(o.socket); err != nil {
		log.Warn("nobody can ask this agent", "error", err)
	} else {
		server := api.NewAgentServer(reporting, d, log)
		server.Handle("/metrics", metrics.AgentHandler(version, reporting, d.problems.All))
		defer d.serve(ctx, server, listener)()
	}
	d.follow(ctx, changes)
	cancel()
	log.Info("agent ends; what it set up goes on until weir detach")
	return nil
}

// startReports lets the agent report its connections to the directors' etcd, if it is
// told where that is. The etcd need not answer yet.
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

// newAgentDaemon makes a daemon whose configuration the agent applies.
func newAgentDaemon(d *daemon, a meteredAgent, began model.Agent) *daemon {
	var mu sync.Mutex
	var running model.Config
	d.apply = func(c model.Config) error {
		d.noteRestart("agent.store", !reflect.DeepEqual(c.Agent.Store, began.Store))
		d.noteRestart("agent.udp-flows", *c.Agent.UDPFlows != *began.UDPFlows)
		err := needCapabilities(privilege.Agent, &c, d.log)
		if err != nil {
			err = fmt.Errorf("%w, and start it again", err) // it may have dropped them
		} else {
			err = a.Set(c)
		}
		d.problems.Report(model.ProblemLoads, "", a.sender.Set(&c)) // no reason not to unwrap what comes
		d.noteSet(err)
		d.problems.Report(model.ProblemFile, d.info.File, nil) // it is right, whatever the kernel says
		if err != nil {
			return listedError{err}
		}
		mu.Lock()
		defer mu.Unlock()
		running = c
		return nil
	}
	d.running = func() model.Config {
		mu.Lock()
		defer mu.Unlock()
		return running
	}
	return d
}
