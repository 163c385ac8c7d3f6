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
		Neighbor: desired.Director.Neighbor, Group: desired.Director.Group, VIPs: VIPs(desired, report), SNAT: desired.Director.SNAT, EVPN: evpnOf(desired, report)}
}

// VIPs returns the VIPs that have a service that is up, in order: what hooks are told, and what
// hosts on the link may ask for.
func VIPs(desired *model.Config, report *Report) []model.VIP {
	if len(desired.Hooks) == 0 && !desired.Director.Neighbor.Given() {
		return nil
	}
	return vipsUp(report)
}

// stayingUp returns the VIPs that were told and still should be.
func stayingUp(told, next []model.VIP) []model.VIP {
	return slices.DeleteFunc(slices.Clone(told), func(vip model.VIP) bool {
		_, stays := slices.BinarySearchFunc(next, vip, model.VIP.Compare)
		return !stays
	})
}

// Routes returns what to tell routers: the VIPs that have a service that is up, or the prefixes
// that are announced in their place, each for the routers of its segment. It is a pure function of
// desired state and health, like the table; the report is about that.
func Routes(desired *model.Config, report *Report) []model.Route {
	if !desired.BGP.Given() {
		return nil
	}
	up := map[destination]model.Route{}
	for _, vip := range vipsUp(report) {
		if r, is := routeOf(&desired.BGP, vip); is {
			up[destinationOf(&r)] = r
		}
	}
	routes := make([]model.Route, 0, len(up))
	for _, r := range up {
		routes = append(routes, r)
	}
	slices.SortFunc(routes, func(a, b model.Route) int {
		return cmp.Or(a.Segment.Compare(b.Segment), a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return routes
}

// destination is where routers of a segment are told to send packets for.
type destination struct {
	segment model.Segment
	prefix  netip.Prefix
}

func destinationOf(r *model.Route) destination { return destination{r.Segment, r.Prefix} }

// hostOf returns the destination of one VIP.
func hostOf(vip model.VIP) destination {
	return destination{vip.Segment, netip.PrefixFrom(vip.Address, vip.Address.BitLen())}
}

// vip returns the VIP of a destination that is one address.
func (d destination) vip() model.VIP { return model.VIP{Segment: d.segment, Address: d.prefix.Addr()} }

func (d destination) contains(vip model.VIP) bool {
	return d.segment == vip.Segment && d.prefix.Contains(vip.Address)
}

// vipsUp returns the VIPs that have a service that is up, in order: those whose packets should come
// to this director.
func vipsUp(report *Report) []model.VIP {
	up := []model.VIP{}
	for i := range report.Services {
		if s := &report.Services[i]; s.Up {
			up = append(up, vipOf(s.ID))
		}
	}
	slices.SortFunc(up, model.VIP.Compare)
	return slices.Compact(up)
}

func vipOf(id model.ServiceID) model.VIP { return model.VIP{Segment: id.Segment, Address: id.VIP} }

// routeOf returns the route that covers a VIP, if any does.
func routeOf(bgp *model.BGP, vip model.VIP) (model.Route, bool) {
	host := model.Route{Segment: vip.Segment, Prefix: hostOf(vip).prefix}
	longest := -1
	for i := range bgp.Prefixes {
		p := &bgp.Prefixes[i]
		if p.Segment == vip.Segment && p.Prefix.Contains(vip.Address) && (longest < 0 || p.Prefix.Bits() > bgp.Prefixes[longest].Prefix.Bits()) {
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

// staying returns the announced routes whose destinations still should be announced.
func staying(announced, next []model.Route) []model.Route {
	if slices.EqualFunc(announced, next, func(a, b model.Route) bool { return destinationOf(&a) == destinationOf(&b) }) {
		return announced // the usual case
	}
	destinations := destinationsOf(next)
	stays := []model.Route{}
	for i := range announced {
		if destinations[destinationOf(&announced[i])] {
			stays = append(stays, announced[i])
		}
	}
	return stays
}

func destinationsOf(routes []model.Route) map[destination]bool {
	destinations := make(map[destination]bool, len(routes))
	for i := range routes {
		destinations[destinationOf(&routes[i])] = true
	}
	return destinations
}
