package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/model"
)

func newSets() *cobra.Command {
	var out output
	var conn connection
	cmd := &cobra.Command{
		Use:   "sets [OWNER]",
		Short: "List the sets that a director follows, or show one",
		Long: "sets lists whose sets there are, the director's own file among them. With an owner's name\n" +
			"it shows that set; -o yaml writes it as apply reads it.",
		Example: "  weir sets\n" +
			"  weir sets web-team -o yaml >set.yaml",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: conn.completeOwners,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				sets, err := client.Sets(cmd.Context())
				if err != nil {
					return err
				}
				return out.write(cmd.OutOrStdout(), sets, func(t *table) { setsTable(t, sets) })
			}
			set, err := client.Set(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), set, func(t *table) { setTable(t, &set) })
		},
	}
	out.add(cmd)
	conn.add(cmd)
	return cmd
}

func setsTable(t *table, sets []api.SetInfo) {
	t.row("OWNER", "SERVICES", "WHERE", "ETAG")
	for _, s := range sets {
		where := "store"
		if s.Fixed {
			where = "the director's file"
		}
		t.row(s.Owner, s.Services, where, s.ETag)
	}
}

func setTable(t *table, set *api.Set) {
	t.row("NAME", "SEGMENT", "VIP", "PROTOCOL", "PORT", "MODE", "POLICY", "AFFINITY", "BACKENDS", "DRAINING", "DOWN")
	for i := range set.Services {
		s := &set.Services[i]
		in := map[model.BackendState]int{}
		for j := range s.Backends {
			in[s.Backends[j].State]++
		}
		t.row(s.Name, s.Segment, s.VIP, s.Protocol, s.Port, s.Mode, s.Policy, s.Affinity, len(s.Backends), in[model.Draining], in[model.Down])
	}
}

// completeOwners offers the owners of sets; none if the director does not answer.
func (c *connection) completeOwners(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.offer(cmd, func(ctx context.Context, client *api.Client) []string {
		sets, _ := client.Sets(ctx) // without an answer nothing is offered
		var names []string
		for _, s := range sets {
			names = append(names, s.Owner+"\t"+daemon.ServicesText(s.Services))
		}
		slices.Sort(names)
		return names
	})
}
