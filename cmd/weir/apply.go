package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
)

// applied is what apply writes: the plan, and its result.
type applied struct {
	api.Plan
	Applied bool          `json:"applied"`
	Steps   []appliedStep `json:"steps,omitempty"`
	Failed  string        `json:"failed,omitempty"` // why it is not applied
}

// Defaults and bounds of a change in steps.
const (
	defaultWatch = 10 * time.Second
	lookPause    = time.Second
	lookPatience = time.Minute
	mostSteps    = 100
)

func newApply() *cobra.Command {
	var out output
	var conn connection
	var set setFlags
	w := watch{every: lookPause, patience: lookPatience}
	var dryRun bool
	var count int
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make a file's services the whole of an owner's set",
		Long: "apply replaces an owner's set in the director's store as a whole: services that the file\n" +
			"does not have are removed. They are forwarded beside those of the director's own file\n" +
			"and of other owners. The file has one key, services, as the director's own. It prints\n" +
			"the plan first, and applies what was planned: nothing, if somebody has changed the set\n" +
			"meanwhile. With --steps slots move in so many parts, each of which is looked at, and if\n" +
			"probes fail, or connections are reset, more than they may, the set is what it was again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := w.check(); err != nil {
				return err
			}
			if count < 1 || count > mostSteps {
				return usagef("--steps %d is not from 1 to %d", count, mostSteps)
			}
			if count > 1 && !cmd.Flags().Changed("watch") {
				w.time = defaultWatch
			}
			request, err := set.request(cmd)
			if err != nil {
				return err
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			a := applied{}
			a.Plan, err = asOwner(cmd, &request.Owner, func() (api.Plan, error) { return client.Plan(cmd.Context(), request) })
			if err != nil {
				return err
			}
			people := out.format == "table" // the other formats are one document for everything
			say := func(format string, values ...any) {
				if people {
					fmt.Fprintf(cmd.OutOrStdout(), format+"\n", values...)
				}
			}
			if people {
				if err := out.write(cmd.OutOrStdout(), nil, func(t *table) { planTable(t, &a.Plan) }); err != nil {
					return err
				}
				if !dryRun {
					say("")
				}
			}
			switch {
			case dryRun:
			case len(a.Services) > 0 && (count > 1 || cmd.Flags().Changed("watch")): // else there is nothing to watch
				s := steps{client: client, request: request, plan: &a.Plan, count: count, watch: w, say: say, progress: &conn.progress}
				var last api.SetChange
				if a.Steps, last, err = s.apply(cmd.Context()); err == nil {
					a.Revision, a.Applied = last.Revision, true
				}
			default:
				if a.SetChange, err = client.PutSet(cmd.Context(), request.Owner, request.SetText, conditionOf(&a.Plan)); err == nil {
					a.Applied = true
				}
			}
			switch {
			case a.Applied && a.Revision > 0:
				say("applied, as revision %d", a.Revision)
			case a.Applied: // revisions count the changes of all: a tenant's client is not told
				say("applied, as the set of owner %s", request.Owner)
			}
			if people {
				return err
			}
			if err != nil {
				a.Failed = err.Error()
			}
			if writing := out.write(cmd.OutOrStdout(), a, nil); writing != nil {
				return writing
			}
			return err
		},
	}
	set.add(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the plan, and change nothing")
	cmd.Flags().IntVar(&count, "steps", 1, "apply it in so `many` equal parts, one after the other")
	w.add(cmd)
	out.add(cmd)
	conn.add(cmd)
	conn.completeOwnerFlag(cmd)
	return cmd
}

// conditionOf demands that the set is the one that was planned for.
func conditionOf(p *api.Plan) api.Condition {
	if p.Base == "" {
		return api.Condition{None: true}
	}
	return api.Condition{Tags: []string{p.Base}}
}
