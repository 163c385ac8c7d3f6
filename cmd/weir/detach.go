package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/director"
	"weir.io/weir/internal/privilege"
)

func newDetach() *cobra.Command {
	var out output
	var bpffs, socket string
	cmd := &cobra.Command{
		Use:   "detach",
		Short: "Remove everything that weir left in the kernel: forwarding ends",
		Long: "detach removes programs, maps and pins of the director and of the agent, and the\n" +
			"VIPs that the agent put on lo, and ends weir bfd; sysctls stay as weir set them. Stop the processes\n" +
			"first: a stopped one goes on forwarding until it is detached.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := daemon.NeedCapabilities(privilege.Run, nil, nil); err != nil {
				return err
			}
			pin := daemon.PinDirectory(bpffs)
			if err := notRunning(cmd, socket, pin); err != nil {
				return err
			}
			// The agent first: the director's part removes the directory of both.
			before := whatIsLeft(pin)
			err := errors.Join(agent.Detach(pin), director.Detach(pin, socket))
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), before, func(t *table) { t.line(before.String()) })
		},
	}
	out.add(cmd)
	addBPFFS(cmd, &bpffs)
	addSocket(cmd, &socket)
	return cmd
}

// removal is the list of what detach removes.
type removal struct {
	Directory  string   `json:"directory"`  // of the pins
	Interfaces []string `json:"interfaces"` // that the director was attached to
	Agent      bool     `json:"agent"`      // the agent, and its VIPs
	Maps       bool     `json:"maps"`       // of a director
}

// whatIsLeft says what detach is about to remove.
func whatIsLeft(pin string) removal {
	r := removal{Directory: pin, Interfaces: []string{}}
	entries, _ := os.ReadDir(pin) // if it cannot be read, detach itself will say so
	for _, e := range entries {
		name, isLink := strings.CutPrefix(e.Name(), "xdp-")
		switch {
		case isLink:
			r.Interfaces = append(r.Interfaces, device.PinnedInterface(name))
		case e.Name() == "agent":
			r.Agent = true
		default:
			r.Maps = true
		}
	}
	return r
}

// String describes the removal for people.
func (r removal) String() string {
	var parts []string
	for _, name := range r.Interfaces {
		parts = append(parts, "the director on "+name)
	}
	if r.Agent {
		parts = append(parts, "the agent and its VIPs")
	}
	switch {
	case len(parts) > 0:
		return "removed " + strings.Join(parts, ", ")
	case r.Maps:
		return "removed a director's maps"
	}
	return "nothing of weir under " + r.Directory
}

// notRunning refuses to detach under a running director, which would not know of it.
func notRunning(cmd *cobra.Command, socket, pin string) error {
	status, err := api.NewClient(socket).Status(cmd.Context())
	if err == nil && status.Pin == pin {
		return fmt.Errorf("a director runs (process %d): stop it first", status.PID)
	}
	return nil
}
