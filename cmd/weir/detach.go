package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/datapath"
)

func newDetach() *cobra.Command {
	var bpffs, socket string
	cmd := &cobra.Command{
		Use:   "detach",
		Short: "Remove everything that weir left in the kernel: forwarding ends",
		Long: "detach removes programs, maps and pins of the director and of the agent, and the\n" +
			"VIPs that the agent put on lo. Stop the processes first: a stopped one goes on\n" +
			"forwarding until it is detached.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pin := pinDirectory(bpffs)
			if err := notRunning(cmd, socket, pin); err != nil {
				return err
			}
			// The agent first: the director's part removes the directory of both.
			return errors.Join(agent.Detach(pin), datapath.Detach(pin))
		},
	}
	addBPFFS(cmd, &bpffs)
	addSocket(cmd, &socket)
	return cmd
}

// notRunning refuses to detach what a running director would not know of.
func notRunning(cmd *cobra.Command, socket, pin string) error {
	status, err := api.NewClient(socket).Status(cmd.Context())
	if err == nil && status.Pin == pin {
		return fmt.Errorf("a director runs (process %d): stop it first", status.PID)
	}
	return nil
}
