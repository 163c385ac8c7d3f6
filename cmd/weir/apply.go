package main

import (
	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

func newApply() *cobra.Command {
	var out output
	var conn connection
	var file, owner string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make a file's services the whole of an owner's set",
		Long: "apply replaces an owner's set in the director's store as a whole: services that the file\n" +
			"does not have are removed. They are forwarded beside those of the director's own file\n" +
			"and of other owners. The file has one key, services, as the director's own.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := store.CheckOwner(owner); err != nil {
				return usageError{err}
			}
			_, text, err := config.LoadSet(file)
			if err != nil {
				return err
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			set := api.SetText{Text: text}
			var change api.SetChange
			if dryRun {
				change, err = client.PlanSet(cmd.Context(), owner, set)
			} else {
				change, err = client.PutSet(cmd.Context(), owner, set, api.Condition{})
			}
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), change, func(t *table) { changeTable(t, change) })
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "`file` with the services")
	cmd.Flags().StringVar(&owner, "owner", store.OwnerCLI, "`name` of the set's owner")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would change, and change nothing")
	_ = cmd.MarkFlagRequired("file")
	out.add(cmd)
	conn.add(cmd)
	return cmd
}

func changeTable(t *table, c api.SetChange) {
	moves := map[string]model.Move{}
	for _, m := range c.Moves {
		moves[m.Service] = m
	}
	t.row("CHANGE", "SERVICE", "SLOTS", "MOVED", "SHARE", "HELD")
	for _, part := range []struct {
		what  string
		names []string
	}{{"added", c.Added}, {"changed", c.Changed}, {"removed", c.Removed}} {
		for _, name := range part.names {
			m, has := moves[name]
			if !has {
				t.row(part.what, name, "-", "-", "-", "-")
				continue
			}
			t.row(part.what, name, m.Slots, m.Moved, m.Share(), m.Held)
		}
	}
}
