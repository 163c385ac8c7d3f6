package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

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
			"VIPs that the agent put on lo, and ends weir bfd; sysctls stay as weir set them. Stop the processes\n" +
			"first: a stopped one goes on forwarding until it is detached.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needCapabilities(); err != nil {
				return err
			}
			pin := pinDirectory(bpffs)
			if err := notRunning(cmd, socket, pin); err != nil {
				return err
			}
			// The agent first: the director's part removes the directory of both.
			before := whatIsLeft(pin)
			err := errors.Join(agent.Detach(pin), datapath.Detach(pin), endBFD(socket))
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), before)
			}
			return err
		},
	}
	addBPFFS(cmd, &bpffs)
	addSocket(cmd, &socket)
	return cmd
}

// whatIsLeft says what detach is about to remove.
func whatIsLeft(pin string) string {
	var parts []string
	maps := false
	entries, _ := os.ReadDir(pin) // unreadable: detach itself will say so
	for _, e := range entries {
		name, isLink := strings.CutPrefix(e.Name(), "xdp-")
		switch {
		case isLink:
			parts = append(parts, "the director on "+name)
		case e.Name() == "agent":
			parts = append(parts, "the agent and its VIPs")
		default:
			maps = true
		}
	}
	switch {
	case len(parts) > 0:
		return "removed " + strings.Join(parts, ", ")
	case maps:
		return "removed a director's maps"
	}
	return "nothing of weir under " + pin
}

// notRunning refuses to detach what a running director would not know of.
func notRunning(cmd *cobra.Command, socket, pin string) error {
	status, err := api.NewClient(socket).Status(cmd.Context())
	if err == nil && status.Pin == pin {
		return fmt.Errorf("a director runs (process %d): stop it first", status.PID)
	}
	return nil
}
