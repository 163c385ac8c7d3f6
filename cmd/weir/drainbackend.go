package main

import (
	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

func newDrain() *cobra.Command {
	var out output
	var conn connection
	var d api.Drain
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain BACKEND",
		Short: "Give a backend of sets no new connections",
		Long: "drain makes a backend, by its name or address, draining in the sets that have it: it\n" +
			"keeps its connections and gets no new ones, until --undo or until the set's owner puts\n" +
			"another state. Backends in a director's own file are drained there.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			d.Backend, d.State = args[0], model.Draining
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
			return out.write(cmd.OutOrStdout(), drained, func(t *table) { drainedTable(t, drained) })
		},
	}
	cmd.Flags().StringVar(&d.Service, "service", "", "of this `service` alone")
	cmd.Flags().StringVar(&d.Owner, "owner", "", "of this owner's `set` alone")
	cmd.Flags().BoolVar(&undo, "undo", false, "give it new connections again")
	out.add(cmd)
	conn.add(cmd)
	conn.completeFlag(cmd, "service")
	return cmd
}

func drainedTable(t *table, drained []api.Drained) {
	t.row("OWNER", "SERVICE", "BACKEND", "BEFORE", "STATE")
	for _, d := range drained {
		state := d.State.String()
		if d.Fixed {
			state += " (the director's own file)"
		}
		t.row(d.Owner, d.Service, d.Backend, d.Before, state)
	}
}
