package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

func newBGP() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bgp",
		Short: "Show which routers a director tells what",
		Args:  cobra.NoArgs,
	}
	asks(cmd, func(ctx context.Context, client *api.Client, _ []string) (model.BGPStatus, error) {
		return client.BGP(ctx)
	}, bgpTable)
	return cmd
}

func bgpTable(t *table, s model.BGPStatus) {
	if s.ASN == 0 {
		t.line("this director tells no router: there is no bgp in its configuration")
		return
	}
	t.row("as", s.ASN)
	t.row("router-id", s.RouterID)
	if s.Draining {
		t.row("draining", "routes are marked or withdrawn: the director ends")
	}
	t.line("")
	t.row("NEIGHBOR", "AS", "STATE", "SINCE", "HOLD-TIME", "FAMILIES", "RESTARTS", "BFD", "ROUTES", "LOSSES", "PROBLEM")
	for _, n := range s.Neighbors {
		hold, restarts := "", ""
		if n.State == model.SessionEstablished {
			hold, restarts = n.HoldTime.String(), fmt.Sprint(n.GracefulRestart)
		}
		name := n.Name()
		if n.Interface != "" && n.Address.IsValid() {
			name += " " + n.Address.WithZone("").String()
		}
		t.row(withSegment(name, n.Segment), n.ASN, n.State, n.Since.Format(time.RFC3339), hold, list(n.Families), restarts, n.BFD, n.Announced, n.Losses, n.Problem)
	}
	evpnTable(t, &s)
	t.line("")
	t.row("PREFIX", "NEIGHBORS", "COMMUNITIES", "LOCAL-PREF", "MED", "PREPEND")
	for _, r := range s.Routes {
		a := r.Attributes
		t.row(withSegment(r.Prefix.String(), r.Segment), toldText(&r), list(a.Communities), orNone(a.LocalPref), orNone(a.MED), a.Prepend)
	}
}

// toldText is how many neighbors have been told of a route, and how many are told of it by EVPN.
func toldText(r *model.RouteStatus) string {
	switch {
	case r.EVPN == 0:
		return fmt.Sprint(r.Neighbors)
	case r.Neighbors == 0:
		return fmt.Sprintf("%d(evpn)", r.EVPN)
	}
	return fmt.Sprintf("%d+%d(evpn)", r.Neighbors, r.EVPN)
}

// withSegment adds a segment to what is in one.
func withSegment(text string, s model.Segment) string {
	if s == (model.Segment{}) {
		return text
	}
	return text + " " + s.String()
}

// evpnTable shows what goes between directors and other VTEPs, if anything does.
func evpnTable(t *table, s *model.BGPStatus) {
	speaks := func(n model.BGPNeighborStatus) bool { return n.EVPN != nil }
	if slices.ContainsFunc(s.Neighbors, speaks) {
		t.line("")
		t.row("EVPN-NEIGHBOR", "SENT", "RECEIVED", "STALE", "MALFORMED", "PROBLEM")
	}
	for _, n := range s.Neighbors {
		if e := n.EVPN; e != nil {
			t.row(n.Name(), e.Sent, e.Received, e.Stale, e.Malformed, e.Problem)
		}
	}
	if len(s.EVPN) > 0 {
		t.line("")
		t.row("VNI", "VTEP", "DISTINGUISHER", "TARGETS", "ENTRIES", "HOSTS", "VTEPS", "CONTESTED")
	}
	for i := range s.EVPN {
		e := &s.EVPN[i]
		var contested []string
		for _, h := range e.Contested {
			address := h.MAC.String()
			if h.IP.IsValid() {
				address = h.IP.String()
			}
			contested = append(contested, fmt.Sprintf("%s by %v", address, h.VTEP))
		}
		t.row(e.VNI, e.VTEP, e.Distinguisher, list(e.Export), e.Entries, e.Hosts, e.VTEPs, list(contested))
	}
}

// list writes values as one cell.
func list[T any](values []T) string {
	text := ""
	for i, v := range values {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprint(v)
	}
	return text
}

func orNone(n *uint32) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
