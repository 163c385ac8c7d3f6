package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

func newDirectors() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "directors",
		Short: "List the directors of a group, and what each runs",
		Args:  cobra.NoArgs,
	}
	asks(cmd, func(ctx context.Context, client *api.Client, _ []string) ([]model.DirectorRun, error) {
		return client.Directors(ctx)
	}, directorsTable)
	return cmd
}

func directorsTable(t *table, directors []model.DirectorRun) {
	t.row("DIRECTOR", "VERSION", "SINCE", "REVISION", "SERVICES", "REFUSED")
	for _, d := range directors {
		name := "this one"
		switch {
		case d.Address.IsValid() && d.Self:
			name = d.Address.String() + " (this one)"
		case d.Address.IsValid():
			name = d.Address.String()
		}
		t.row(name, d.Version, d.Started.Format(time.RFC3339), d.Revision, d.Services, d.Refused)
	}
}
