package main

import (
	"context"
	"net/netip"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
)

func newFlows() *cobra.Command {
	var q api.FlowQuery
	var client, backend string
	var segment segmentFlag
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "List the flows whose backends a director remembers",
		Long: "flows lists what a director remembers of flows: those of which the ring alone does not\n" +
			"say where their packets go, and those of full NAT, whose SOURCE is the director's address\n" +
			"and port that the backend sees. CLASS says how far what was seen of a flow shows that it\n" +
			"is one: those that are fresh may be of a flood, and give way to others.",
		Args: cobra.NoArgs,
	}
	conn := asks(cmd, func(ctx context.Context, asked *api.Client, _ []string) (none api.Flows, err error) {
		for _, flag := range []struct {
			name, text string
			to         *netip.Addr
		}{{"client", client, &q.Client}, {"backend", backend, &q.Backend}} {
			if flag.text != "" {
				if *flag.to, err = netip.ParseAddr(flag.text); err != nil {
					return none, usagef("--%s: %q is not an IP address", flag.name, flag.text)
				}
			}
		}
		if q.Most < 1 {
			return none, usagef("--limit %d is less than one", q.Most)
		}
		q.Segment = segment.in
		list, err := asked.Flows(ctx, q)
		if err == nil && len(list.Flows) == 0 {
			err = segment.known(ctx, asked)
		}
		return list, err
	}, flowsTable)
	cmd.Flags().StringVar(&q.Service, "service", "", "of this `service` alone")
	segment.add(cmd, "of services in")
	cmd.Flags().StringVar(&client, "client", "", "of the client of this `address` alone")
	cmd.Flags().StringVar(&backend, "backend", "", "of the backend of this `address` alone")
	cmd.Flags().IntVar(&q.Most, "limit", api.DefaultFlows, "list this `many` at most")
	conn.completeFlag(cmd, "service")
	return cmd
}

func flowsTable(t *table, list api.Flows) {
	t.head("SERVICE", segmentColumn(list.Flows, func(f *api.Flow) model.Segment { return f.Segment }), "CLIENT", "PORT", "SOURCE", "BACKEND", "CLASS", "STATE", "IDLE")
	for _, f := range list.Flows {
		idle := f.Idle.String()
		if f.Idle == 0 {
			idle = ""
		}
		source := ""
		if f.Source.IsValid() {
			source = explain.EndText(f.Source)
		}
		t.row(f.Service, f.Segment, explain.EndText(f.Client), f.Port, source, explain.EndText(f.Backend), f.Class, f.State, idle)
	}
	if list.More {
		t.line("there are more: see --limit")
	}
}
