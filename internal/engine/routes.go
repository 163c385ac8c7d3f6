package engine

import (
	"cmp"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// Announcer is the sink that tells routers, hooks, and hosts on the link, which VIPs this director
// forwards.
type Announcer interface {
	// Set replaces the receivers, and what they are told, by those of the announcement. It does not
	// wait for the receivers.
	Set(model.Announcement)
}

// announcement returns what to tell to which receivers.
func announcement(desired *model.Config, report *Report) model.Announcement {
	return model.Announcement{BGP: desired.BGP, Routes: Routes(desired, report), Hooks: desired.Hooks,
		Neighbor: desired.Director.Neighbor, Group: desired.Director.Group, VIPs: VIPs(desired, report), SNAT: desired.Director.SNAT}
}

// VIPs returns the VIPs that have a service that is up, in order: what hooks are told, and what
// hosts on the link may ask for. VIPs in segments are not in it, as they are not in Routes.
func VIPs(desired *model.Config, report *Report) []netip.Addr {
	if len(desired.Hooks) == 0 && !desired.Director.Neighbor.Given() {
		return nil
	}
	return vipsUp(report)
}

// stayingUp returns the VIPs that were told and still should be.
func stayingUp(told, next []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(told), func(vip netip.Addr) bool {
		_, stays := slices.BinarySearchFunc(next, vip, netip.Addr.Compare)
		return !stays
	})
}

// Routes returns what to tell routers: the VIPs that have a service that is up, or the prefixes
// that are announced in their place. It is a pure function of desired state and health, like the
// table; the report is about that. VIPs in segments are not in it: the host's own routers do not
// reach them.
func Routes(desired *model.Config, report *Report) []model.Route {
	if !desired.BGP.Given() {
		return nil
	}
	up := map[netip.Prefix]model.Route{}
	for _, vip := range vipsUp(report) {
		if r, is := routeOf(&desired.BGP, vip); is {
			up[r.Prefix] = r
		}
	}
	routes := make([]model.Route, 0, len(up))
	for _, r := range up {
		routes = append(routes, r)
	}
	slices.SortFunc(routes, func(a, b model.Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return routes
}

// vipsUp returns the VIPs that have a service that is up, in order: those whose packets should come
// to this director. VIPs in segments are not among them.
func vipsUp(report *Report) []netip.Addr {
	up := []netip.Addr{}
	for i := range report.Services {
		if s := &report.Services[i]; s.Up && s.ID.Segment == (model.Segment{}) {
			up = append(up, s.ID.VIP)
		}
	}
	slices.SortFunc(up, netip.Addr.Compare)
	return slices.Compact(up)
}

// routeOf returns the route that covers a VIP, if any does.
func routeOf(bgp *model.BGP, vip netip.Addr) (model.Route, bool) {
	host := model.Route{Prefix: netip.PrefixFrom(vip, vip.BitLen())}
	longest := -1
	for i := range bgp.Prefixes {
		p := &bgp.Prefixes[i]
		if p.Prefix.Contains(vip) && (longest < 0 || p.Prefix.Bits() > bgp.Prefixes[longest].Prefix.Bits()) {
			longest = i
		}
	}
	if longest < 0 {
		return host, true
	}
	p := &bgp.Prefixes[longest]
	host.Attributes = p.Attributes
	if p.Announce == model.AnnouncePrefix {
		host.Prefix = p.Prefix
	}
	return host, p.Announce != model.AnnounceNothing
}

// staying returns the announced routes whose prefixes still should be announced.
func staying(announced, next []model.Route) []model.Route {
	if slices.EqualFunc(announced, next, func(a, b model.Route) bool { return a.Prefix == b.Prefix }) {
		return announced // the usual case
	}
	prefixes := prefixesOf(next)
	stays := []model.Route{}
	for _, r := range announced {
		if prefixes[r.Prefix] {
			stays = append(stays, r)
		}
	}
	return stays
}

func prefixesOf(routes []model.Route) map[netip.Prefix]bool {
	prefixes := make(map[netip.Prefix]bool, len(routes))
	for i := range routes {
		prefixes[routes[i].Prefix] = true
	}
	return prefixes
}
