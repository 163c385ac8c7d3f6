package main

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios, and the checks that each answers",
		Args:  takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			for _, s := range scenarios {
				what := s.what
				if s.when != always {
					what += " Only where it is named."
				}
				fmt.Fprintf(w, "%s\t%s\n", s.name, what)
				for _, c := range slices.Concat(checks, alternates) {
					if c.scenario == s.name {
						fmt.Fprintf(w, "\t  %s %s %g%s: %s\n", c.name, c.relation, c.target, c.unit, c.what)
					}
				}
			}
			return w.Flush()
		},
	}
}
