package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

func newBackends() *cobra.Command {
	var segment segmentFlag
	cmd := &cobra.Command{
		Use:   "backends [SERVICE...]",
		Short: "List the backends of a director's services",
	}
	conn := asks(cmd, func(ctx context.Context, client *api.Client, names []string) ([]api.Backend, error) {
		backends, err := backendsOf(ctx, client, names, segment.in)
		if err == nil && len(backends) == 0 {
			err = segment.known(ctx, client)
		}
		return backends, err
	}, backendsTable)
	segment.add(cmd, "backends in")
	cmd.ValidArgsFunction = conn.completeServices
	return cmd
}

// backendsOf returns the backends of the named services that are in a segment; if none is named, of all,
// and with nil in all.
func backendsOf(ctx context.Context, client *api.Client, names []string, in *model.Segment) ([]api.Backend, error) {
	backends, err := client.BackendsIn(ctx, in)
	if err != nil || len(names) == 0 {
		return backends, err
	}
	services, err := client.Services(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := named(services, names); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(backends, func(b api.Backend) bool { return !slices.Contains(names, b.Service) }), nil
}

func backendsTable(t *table, backends []api.Backend) {
	head := []string{"SERVICE", "NAME", segmentColumn(backends, func(b *api.Backend) model.Segment { return b.Segment }), "ADDRESS", "MODE"}
	tiers := slices.ContainsFunc(backends, func(b api.Backend) bool { return b.Tier > 0 })
	if tiers {
		head = append(head, "TIER")
	}
	t.head(append(head, "STATE", "SHARE", "CONNECTIONS", "PACKETS", "BYTES", "HEALTH",
		onlyWide+"INTERFACE", onlyWide+"NEXT-HOP", onlyWide+"MTU", onlyWide+"LOAD", onlyWide+"REDIRECT", onlyWide+"SINCE", "WHY")...)
	for _, b := range backends {
		where, hop := b.Interface, b.NextHop.String()
		if b.Local {
			where, hop = "local", ""
		} else if b.ByKernel {
			hop = "kernel"
		}
		row := []any{b.Service, b.Name, b.Segment, endOf(&b.BackendStatus), b.Mode}
		if tiers {
			row = append(row, b.Tier)
		}
		t.row(append(row, b.State, share(&b.BackendStatus), b.Opened, b.Packets, b.Bytes, healthOf(b.Health),
			where, hop, b.MTU, loadOf(b.Load), redirectOf(b.Redirect), sinceOf(b.Health), whyOf(&b.BackendStatus))...)
	}
}

// endOf is a backend's address, and of a pod whose host delivers to it.
func endOf(b *model.BackendStatus) string {
	if !b.Host.IsValid() {
		return b.Address.String()
	}
	return b.Address.String() + "@" + b.Host.String()
}

// loadOf is what a backend's agent reports: open connections, those that wait for the server,
// and the pressure on its CPUs.
func loadOf(l *model.BackendLoad) string {
	if l == nil {
		return ""
	}
	text := fmt.Sprintf("%d,%d,%.0f%%", l.Connections, l.Queue, 100*l.Pressure)
	if l.Stale {
		text += ",stale"
	}
	return text
}

// redirectOf says whether connections are handed over to a backend, and if not, why.
func redirectOf(r *model.BackendRedirect) string {
	switch {
	case r == nil:
		return ""
	case r.Able:
		return "yes"
	case r.Reason == "":
		return "no"
	}
	return "no:" + r.Reason
}

// healthOf is what the director's probes say about a backend, if it is checked.
func healthOf(h *model.BackendHealth) string {
	if h == nil {
		return ""
	}
	return string(h.State)
}

func sinceOf(h *model.BackendHealth) string {
	if h == nil {
		return ""
	}
	return h.Since.Format(time.RFC3339)
}

// whyOf is why there is no way to a backend, or the last failure of a probe: for a backend that is
// down the reason, for one that is up what may take it down, or why it does not have its whole
// share; and how its state in the file is overridden.
func whyOf(b *model.BackendStatus) string {
	var why []string
	switch h := b.Health; {
	case b.Unreachable != "":
		why = append(why, "unreachable: "+b.Unreachable)
	case h != nil && h.Reason != "":
		why = append(why, h.Reason+": "+h.Detail)
	case h != nil && h.Detail != "": // it has not been probed yet
		why = append(why, h.Detail)
	case b.Strain != nil:
		why = append(why, strainOf(b.Strain))
	}
	if b.Override != nil {
		why = append(why, overrideText(b.Override))
	}
	return strings.Join(why, "; ")
}

// overrideText names the client that has overridden a backend's state in the file, and says when.
func overrideText(o *model.Override) string {
	return fmt.Sprintf("%s by %s at %s, beside the file: see weir undrain", o.State, o.By, o.At.Format(time.RFC3339))
}

// strainOf is what agents report about a backend, and the result.
func strainOf(s *model.BackendStrain) string {
	text := "strain: none any more"
	if s.Refused > 0 || s.Overflows > 0 {
		text = fmt.Sprintf("strain: in a second %g connections are refused, and %g find no room", s.Refused, s.Overflows)
	}
	if s.Parts < model.ShareParts {
		text += fmt.Sprintf("; it keeps %d/%d of its share", s.Parts, model.ShareParts)
	}
	return text
}

// share is which part of new connections a backend gets.
func share(b *model.BackendStatus) string {
	if b.Share == nil {
		return "by load"
	}
	return percent(*b.Share)
}
