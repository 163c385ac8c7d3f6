package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

func newBackends() *cobra.Command {
	var out output
	var socket string
	cmd := &cobra.Command{
		Use:   "backends [SERVICE...]",
		Short: "List the backends of a director's services",
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := out.check(); err != nil {
				return err
			}
			backends, err := api.NewClient(socket).Backends(cmd.Context())
			if err != nil {
				return err
			}
			if backends, err = ofServices(cmd, socket, backends, names); err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), backends, func(t *table) { backendsTable(t, backends) })
		},
	}
	out.add(cmd)
	addSocket(cmd, &socket)
	return cmd
}

// ofServices keeps the backends of the named services; none named: of all.
func ofServices(cmd *cobra.Command, socket string, backends []api.Backend, names []string) ([]api.Backend, error) {
	if len(names) == 0 {
		return backends, nil
	}
	services, err := api.NewClient(socket).Services(cmd.Context())
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool, len(services))
	for _, s := range services {
		known[s.Name] = true
	}
	for _, name := range names {
		if !known[name] {
			return nil, fmt.Errorf("there is no service %q", name)
		}
	}
	return slices.DeleteFunc(backends, func(b api.Backend) bool { return !slices.Contains(names, b.Service) }), nil
}

func backendsTable(t *table, backends []api.Backend) {
	slots := make(map[string]int)
	for _, b := range backends {
		slots[b.Service] += b.Slots
	}
	t.row("SERVICE", "NAME", "ADDRESS", "MODE", "STATE", "SHARE", "INTERFACE", "NEXT-HOP", "MTU", "PACKETS", "BYTES")
	for _, b := range backends {
		where, hop := b.Interface, b.NextHop.String()
		if b.Local {
			where, hop = "local", ""
		}
		t.row(b.Service, b.Name, b.Address, b.Mode, b.State, share(b, slots[b.Service]), where, hop, b.MTU, b.Packets, b.Bytes)
	}
}

// share is what part of new connections a backend gets. Those of a backend that is
// down go to others, its slots' backups.
func share(b api.Backend, of int) string {
	switch {
	case of == 0:
		return ""
	case b.State == model.Down && b.Slots > 0:
		return "backups"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(b.Slots)/float64(of))
}
