package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
)

// flowTick is the unit of a remembered flow's age, which is counted in 2^30 ns.
const flowTick = time.Duration(1 << 30)

var flowStates = map[model.RememberedState]string{model.FlowOpening: "opening", model.FlowOpen: "open", model.FlowClosing: "closing", model.FlowReset: "reset"}

// flows lists the remembered flows.
func (d *director) flows(ctx context.Context, q api.FlowQuery) (api.Flows, error) {
	names := map[model.ServiceID]string{}
	known := q.Service == ""
	for _, s := range d.Config().Services {
		names[s.ID()] = s.Name
		known = known || s.Name == q.Service
	}
	if !known {
		return api.Flows{}, api.NewProblem(http.StatusNotFound, fmt.Sprintf("there is no service %q", q.Service),
			api.FieldProblem{Field: "query.service", Detail: "there is none of this name"})
	}
	var list api.Flows
	add := func(table string, f *model.RememberedFlow, source netip.AddrPort) (room bool) {
		name := names[f.Service]
		if q.Service != "" && name != q.Service || q.Client.IsValid() && f.Source.Addr() != q.Client || q.Backend.IsValid() && f.Backend.Addr() != q.Backend {
			return true
		}
		if len(list.Flows) == q.Most {
			list.More = true
			return false
		}
		list.Flows = append(list.Flows, api.Flow{Table: table, Service: name, Client: f.Source, VIP: f.Service.VIP, Port: f.Port, Backend: f.Backend, Source: source,
			Class: f.Class.String(), State: flowStates[f.State], Idle: model.Duration((time.Duration(f.Age) * flowTick).Round(time.Second))})
		return true
	}
	err := d.kernel.RememberedFlows(func(some []model.RememberedFlow) bool {
		for i := range some {
			if !add(api.TableFlowMemory, &some[i], netip.AddrPort{}) {
				return false
			}
		}
		return ctx.Err() == nil
	})
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return list, fmt.Errorf("read what is remembered of flows: %w", err)
	}
	err = d.kernel.NATFlows(func(some []model.NATFlow) bool {
		for i := range some {
			if !add(api.TableFullNAT, &some[i].RememberedFlow, some[i].Own) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return list, fmt.Errorf("read the flows of full NAT: %w", err)
	}
	return list, nil
}

func newFlows() *cobra.Command {
	var out output
	var conn connection
	var q api.FlowQuery
	var client, backend string
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "List the flows whose backends a director remembers",
		Long: "flows lists what a director remembers of flows: those of which the ring alone does not\n" +
			"say where their packets go, and those of full NAT, whose SOURCE is the director's address\n" +
			"and port that the backend sees. CLASS says how far what was seen of a flow shows that it\n" +
			"is one: those that are fresh may be of a flood, and give way to others.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			for _, flag := range []struct {
				name, text string
				to         *netip.Addr
			}{{"client", client, &q.Client}, {"backend", backend, &q.Backend}} {
				var err error
				if flag.text != "" {
					if *flag.to, err = netip.ParseAddr(flag.text); err != nil {
						return usagef("--%s: %q is not an IP address", flag.name, flag.text)
					}
				}
			}
			if q.Most < 1 {
				return usagef("--limit %d is less than one", q.Most)
			}
			asked, err := conn.client()
			if err != nil {
				return err
			}
			flows, err := asked.Flows(cmd.Context(), q)
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), flows, func(t *table) { flowsTable(t, flows) })
		},
	}
	cmd.Flags().StringVar(&q.Service, "service", "", "of this `service` alone")
	cmd.Flags().StringVar(&client, "client", "", "of the client of this `address` alone")
	cmd.Flags().StringVar(&backend, "backend", "", "of the backend of this `address` alone")
	cmd.Flags().IntVar(&q.Most, "limit", api.DefaultFlows, "list this `many` at most")
	out.add(cmd)
	conn.add(cmd)
	conn.completeFlag(cmd, "service")
	return cmd
}

func flowsTable(t *table, list api.Flows) {
	t.row("SERVICE", "CLIENT", "PORT", "SOURCE", "BACKEND", "CLASS", "STATE", "IDLE")
	for _, f := range list.Flows {
		idle := f.Idle.String()
		if f.Idle == 0 {
			idle = ""
		}
		source := ""
		if f.Source.IsValid() {
			source = explain.EndText(f.Source)
		}
		t.row(f.Service, explain.EndText(f.Client), f.Port, source, explain.EndText(f.Backend), f.Class, f.State, idle)
	}
	if list.More {
		t.line("there are more: see --limit")
	}
}
