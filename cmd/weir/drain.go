package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/sets"
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
	var d api.Drain
	var undo bool
	cmd := &cobra.Command{
		Use:   verb + " BACKEND",
		Short: short,
		Long:  long,
		Args:  cobra.ExactArgs(1),
	}
	conn := asks(cmd, func(ctx context.Context, client *api.Client, args []string) ([]api.Drained, error) {
		d.Backend, d.State = args[0], state
		if service, backend, both := strings.Cut(args[0], "/"); both {
			if d.Service != "" && d.Service != service {
				return nil, usagef("%s names service %q, and --service %q", args[0], service, d.Service)
			}
			if service == "" || backend == "" {
				return nil, usagef("%q is not SERVICE/BACKEND: one of both is empty", args[0])
			}
			d.Service, d.Backend = service, backend
		}
		if undo {
			d.State = model.Active
		}
		drained, err := client.Drain(ctx, d)
		sayUnkept(cmd.ErrOrStderr(), drained)
		sayLast(cmd.ErrOrStderr(), drained)
		return drained, err
	}, drainedTable)
	cmd.Flags().StringVar(&d.Service, "service", "", "of this `service` alone")
	cmd.Flags().StringVar(&d.Owner, "owner", "", "of this owner's `set` alone; file: the director's own file")
	if state != model.Active {
		cmd.Flags().BoolVar(&undo, "undo", false, "as undrain: give it new connections again")
	}
	conn.completeFlag(cmd, "service")
	conn.completeOwnerFlag(cmd)
	cmd.ValidArgsFunction = conn.completeBackends
	return cmd
}

func drainedTable(t *table, drained []api.Drained) {
	t.row("OWNER", "SERVICE", "BACKEND", "BEFORE", "STATE")
	for _, d := range drained {
		state := d.State.String()
		switch {
		case d.Fixed:
			state += " (stays what it is: " + sets.WhyFixed(d.Owner) + ")"
		case d.Override != nil:
			state += " (beside the file, until weir undrain)"
		}
		t.row(d.Owner, d.Service, d.Backend, d.Before, state)
	}
}

// sayLast says of which services the last active backend was drained.
func sayLast(w io.Writer, drained []api.Drained) {
	var of []string
	for i := range drained {
		if d := &drained[i]; d.Last && !slices.Contains(of, d.Service) {
			of = append(of, d.Service)
			fmt.Fprintf(w, "weir: service %s has no active backend any more: those that were the last go on getting its new connections\n", d.Service)
		}
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
