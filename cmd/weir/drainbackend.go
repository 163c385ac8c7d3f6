package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

func newDrain() *cobra.Command {
	return newDraining("drain", "Give a backend no new connections",
		"drain makes a backend draining: it keeps its connections and gets no new ones. BACKEND is\n"+
			"its name or address, in all services that have it, or SERVICE/BACKEND. In a set it lasts\n"+
			"until the set's owner puts another state; of the director's own file it is kept beside\n"+
			"the file, over reloads and restarts, until undrain, or until the file itself has another\n"+
			"state for the backend, or has it no more.", model.Draining)
}

func newUndrain() *cobra.Command {
	return newDraining("undrain", "Give a backend new connections again",
		"undrain ends what drain has begun. BACKEND is as there.", model.Active)
}

func newDraining(verb, short, long string, state model.BackendState) *cobra.Command {
	var out output
	var conn connection
	var d api.Drain
	var undo bool
	cmd := &cobra.Command{
		Use:   verb + " BACKEND",
		Short: short,
		Long:  long,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			d.Backend, d.State = args[0], state
			if service, backend, both := strings.Cut(args[0], "/"); both {
				if d.Service != "" && d.Service != service {
					return usagef("%s names service %q, and --service %q", args[0], service, d.Service)
				}
				d.Service, d.Backend = service, backend
			}
			if undo {
				d.State = model.Active
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			drained, err := client.Drain(cmd.Context(), d)
			if err != nil {
				return err
			}
			sayUnkept(cmd.ErrOrStderr(), drained)
			return out.write(cmd.OutOrStdout(), drained, func(t *table) { drainedTable(t, drained) })
		},
	}
	cmd.Flags().StringVar(&d.Service, "service", "", "of this `service` alone")
	cmd.Flags().StringVar(&d.Owner, "owner", "", "of this owner's `set` alone; file: the director's own file")
	if state != model.Active {
		cmd.Flags().BoolVar(&undo, "undo", false, "as undrain: give it new connections again")
	}
	out.add(cmd)
	conn.add(cmd)
	conn.completeFlag(cmd, "service")
	return cmd
}

func drainedTable(t *table, drained []api.Drained) {
	t.row("OWNER", "SERVICE", "BACKEND", "BEFORE", "STATE")
	for _, d := range drained {
		state := d.State.String()
		switch {
		case d.Fixed:
			state += " (stays what it is: " + whyFixed(d.Owner) + ")"
		case d.Override != nil:
			state += " (beside the file, until weir undrain)"
		}
		t.row(d.Owner, d.Service, d.Backend, d.Before, state)
	}
}

// sayUnkept says what a restart of the director would undo.
func sayUnkept(w io.Writer, drained []api.Drained) {
	for i := range drained {
		if d := &drained[i]; d.Unkept != "" {
			fmt.Fprintf(w, "weir: done until the director's process ends, and kept as soon as that can be: %s\n", d.Unkept)
			return
		}
	}
}
