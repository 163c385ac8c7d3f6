package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/api"
)

type agentOptions struct {
	file, bpffs, socket, attach string
	interfaces                  []string
	log                         logFlags
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
			log, err := o.log.logger(cmd.ErrOrStderr())
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
	o.log.add(cmd)
	return cmd
}

func runAgent(ctx context.Context, o agentOptions, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, changes, err := firstConfig(ctx, o.file)
	if err != nil {
		return err
	}
	if err := prepareHost(o.bpffs); err != nil {
		return err
	}
	pin := pinDirectory(o.bpffs)
	a, err := agent.Open(agent.Options{Pin: pin, Interfaces: o.interfaces, Attach: agent.Attach(o.attach), Log: log})
	if err != nil {
		return err
	}
	defer a.Close()
	d := newDaemon(o.file, pin, log)
	d.apply = a.Set
	if err := d.set(first); err != nil {
		return err
	}
	// The agent of another network namespace may have the socket; this one then
	// does its work without.
	wait, err := d.serve(ctx, api.NewAgentServer(a, d, log), o.socket)
	if err != nil {
		log.Warn("nobody can ask this agent", "error", err)
		wait = func() {}
	}
	log.Info("agent runs", "config", o.file, "pin", pin)
	if err := a.Follow(ctx); err != nil {
		return err
	}
	d.follow(ctx, changes, nil)
	cancel()
	wait()
	log.Info("agent ends; what it set up goes on", "remove", "weir detach")
	return nil
}
