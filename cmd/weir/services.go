package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

func newServices() *cobra.Command {
	var segment segmentFlag
	cmd := &cobra.Command{
		Use:   "services [SERVICE...]",
		Short: "List the services that a director forwards",
	}
	conn := asks(cmd, func(ctx context.Context, client *api.Client, names []string) ([]model.ServiceStatus, error) {
		services, err := client.ServicesIn(ctx, segment.in)
		if err == nil && len(services) == 0 {
			err = segment.known(ctx, client)
		}
		if err != nil {
			return nil, err
		}
		return named(services, names)
	}, servicesTable)
	segment.add(cmd, "services whose VIPs are in")
	cmd.ValidArgsFunction = conn.completeServices
	return cmd
}

// named keeps the services of these names; if none is named, all.
func named(services []model.ServiceStatus, names []string) ([]model.ServiceStatus, error) {
	if len(names) == 0 {
		return services, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(services, func(s model.ServiceStatus) bool { return s.Name == name }) {
			return nil, fmt.Errorf("there is no service %q: weir services lists them", name)
		}
	}
	return slices.DeleteFunc(services, func(s model.ServiceStatus) bool { return !slices.Contains(names, s.Name) }), nil
}

func addSocket(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", api.DefaultSocket, "unix `socket` of the director")
}

func servicesTable(t *table, services []model.ServiceStatus) {
	head := []string{"NAME", segmentColumn(services, func(s *model.ServiceStatus) model.Segment { return s.Segment }), "VIP", "PROTOCOL", "PORT", "MODE", "POLICY", "BACKENDS", "HEALTHY"}
	tiers := slices.ContainsFunc(services, func(s model.ServiceStatus) bool { return s.Tiers != nil })
	if tiers {
		head = append(head, "TIER")
	}
	t.head(append(head, "CONNECTIONS", "PACKETS", "BYTES", "DROPPED",
		onlyWide+"LOADS", onlyWide+"QUIC", onlyWide+"GENERATIONS", onlyWide+"SLOTS", onlyWide+"MOVED", onlyWide+"SHARED", onlyWide+"HELD", onlyWide+"KEPT")...)
	for _, s := range services {
		row := []any{s.Name, s.Segment, s.VIP, s.Protocol, s.Port, s.Mode, s.Policy, fmt.Sprintf("%d/%d", active(s.Backends), len(s.Backends)), healthy(s.Health)}
		if tiers {
			row = append(row, tierOf(s.Tiers))
		}
		t.row(append(row, s.Opened, s.Packets, s.Bytes, s.Dropped, reportedOf(s.Loads), quicNumbers(s.QUIC),
			s.Log.Generations, s.Slots, s.Log.Moved, s.Log.Shared, s.Log.Held, s.Log.Kept)...)
	}
}

// tierOf is the tier that gets new connections and, for another than the first, how many backends of those above it are healthy.
func tierOf(t *model.ServiceTiers) string {
	switch {
	case t == nil:
		return ""
	case t.Active == 0:
		return "0"
	}
	var above []string
	for _, tier := range t.Tiers[:t.Active] {
		above = append(above, fmt.Sprintf("%d/%d", tier.Healthy, tier.Backends))
	}
	return fmt.Sprintf("%d,above:%s", t.Active, strings.Join(above, ","))
}

// quicNumbers are the numbers of a service's configurations of connection IDs.
func quicNumbers(configs []model.QUICStatus) string {
	numbers := make([]string, len(configs))
	for i, c := range configs {
		numbers[i] = strconv.Itoa(int(c.ID))
	}
	return strings.Join(numbers, ",")
}

// reportedOf is how many of the backends that may get connections have a reported load.
func reportedOf(l *model.ServiceLoads) string {
	if l == nil {
		return ""
	}
	text := fmt.Sprintf("%d/%d", l.Reported, l.Reported+l.Stale)
	if l.Degraded {
		text += ",degraded"
	}
	return text
}

// healthy is how many backends are healthy, of those that would get connections if they were.
func healthy(h *model.ServiceHealth) string {
	if h == nil {
		return ""
	}
	text := fmt.Sprintf("%d/%d", h.Up, h.Up+h.Down+h.Unknown)
	if h.Panic {
		text += ",panic"
	}
	return text
}

// active counts the backends that get new connections.
func active(backends []model.BackendStatus) int {
	n := 0
	for _, b := range backends {
		if b.State == model.Active {
			n++
		}
	}
	return n
}
