package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
)

// applied is what apply writes: the plan, and what has become of it.
type applied struct {
	api.Plan
	Applied bool `json:"applied"`
}

func newApply() *cobra.Command {
	var out output
	var conn connection
	var set setFlags
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make a file's services the whole of an owner's set",
		Long: "apply replaces an owner's set in the director's store as a whole: services that the file\n" +
			"does not have are removed. They are forwarded beside those of the director's own file\n" +
			"and of other owners. The file has one key, services, as the director's own. It prints\n" +
			"the plan first, and applies what was planned: nothing, if somebody has changed the set\n" +
			"meanwhile.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			request, err := set.request()
			if err != nil {
				return err
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			a := applied{}
			if a.Plan, err = client.Plan(cmd.Context(), request); err != nil {
				return err
			}
			if out.format == "table" { // the others are one document, of all
				if err := out.write(cmd.OutOrStdout(), nil, func(t *table) { planTable(t, &a.Plan) }); err != nil {
					return err
				}
			}
			if !dryRun {
				if a.SetChange, err = client.PutSet(cmd.Context(), request.Owner, request.SetText, conditionOf(&a.Plan)); err != nil {
					return err
				}
				a.Applied = true
			}
			if out.format == "table" {
				if a.Applied {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "\napplied, as revision %d\n", a.Revision)
				}
				return err
			}
			return out.write(cmd.OutOrStdout(), a, nil)
		},
	}
	set.add(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the plan, and change nothing")
	out.add(cmd)
	conn.add(cmd)
	return cmd
}

// conditionOf is that the set is the one that was planned for.
func conditionOf(p *api.Plan) api.Condition {
	if p.Base == "" {
		return api.Condition{None: true}
	}
	return api.Condition{Tags: []string{p.Base}}
}
