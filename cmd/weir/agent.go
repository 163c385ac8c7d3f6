package main

import (
	"github.com/spf13/cobra"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/agentd"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/logs"
	"weir.io/weir/internal/privilege"
)

func newAgent() *cobra.Command {
	deps := agentd.Deps{Version: version}
	var log logs.Flags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent on a backend's host",
		Long: "agent unwraps what directors send by ipip and gue, holds the VIPs on lo, and clamps\n" +
			"the MSS of what they offer. It follows its file. What it set up goes on when it\n" +
			"ends; weir detach removes it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			deps.Signals = heard()
			var err error
			if deps.Log, err = logger(&log, cmd.ErrOrStderr()); err != nil {
				return err
			}
			return privilege.NameOwner(agentd.Run(cmd.Context(), deps))
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&deps.File, "config", "c", defaultConfig, "configuration `file`")
	flags.StringVar(&deps.Socket, "socket", api.DefaultAgentSocket, "unix `socket` to answer on")
	flags.StringVar((*string)(&deps.Attach), "attach", string(agent.AttachAuto), "how packets are caught: auto, xdp or tc")
	flags.StringSliceVar(&deps.Interfaces, "interface", nil, "`interfaces` that tunnels come in by, instead of the file's")
	addBPFFS(cmd, &deps.BPFFS)
	log.Add(cmd)
	return cmd
}
