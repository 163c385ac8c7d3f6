package doctor

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Clients to which no host has a specific route (RFC 5737, RFC 3849): packets to them take the way
// of most clients.
var (
	anyClient4 = netip.MustParseAddr("198.51.100.1")
	anyClient6 = netip.MustParseAddr("2001:db8:ffff:ffff::1")
)

const toDirector = "route the clients' addresses through a director"

// waysBack examines where nat's replies go, once for each gateway: only a director translates them
// back.
func (x *examination) waysBack(backends []netip.Addr) {
	seen := map[string]bool{}
	for _, backend := range backends {
		check, client := "nat route IPv4", anyClient4
		if backend.Is6() {
			check, client = "nat route IPv6", anyClient6
		}
		route, found := wayTo(client, backend)
		by := check + " by " + route.Gw.String()
		if seen[by] {
			continue
		}
		seen[by] = true
		if seen[check] {
			check += " of " + backend.String() // it has another gateway
		}
		seen[check] = true
		link := x.links[route.LinkIndex]
		switch {
		case !found:
			x.warn(check, toDirector, "there is no default route: replies need one that leads through a director")
		case route.Gw == nil || link == nil:
			x.warn(check, toDirector, "the default route has no gateway: replies need one that is a director")
		default:
			gateway, _ := netip.AddrFromSlice(route.Gw)
			x.gateway(check, gateway.Unmap(), link)
		}
	}
}

// wayTo asks the kernel by which route a packet from an address goes.
func wayTo(client, from netip.Addr) (route netlink.Route, found bool) {
	routes, err := netlink.RouteGetWithOptions(client.AsSlice(), &netlink.RouteGetOptions{SrcAddr: from.AsSlice()})
	if err != nil || len(routes) == 0 {
		return route, false
	}
	return routes[0], true
}

// gateway examines whether the gateway of replies is a director.
func (x *examination) gateway(check string, gateway netip.Addr, link netlink.Link) {
	name := link.Attrs().Name
	known, is := x.isDirector(gateway, link)
	switch {
	case is:
		x.ok(check, "replies go by default to %s on %s: a director", gateway, name)
	case !known:
		x.warn(check, "name the directors' addresses: directors: [10.0.0.0/24]",
			"replies go by default to %s on %s: that must be a director, and the file does not say whether it is", gateway, name)
	default:
		x.fail(check, toDirector+", or name "+gateway.String()+" in directors if it is one",
			"replies go by default to %s on %s, which is none of directors: nobody translates them back, and all clients time out", gateway, name)
	}
}

// isDirector says whether a gateway is a director: by its address, or because a director's address
// on the same link has the same MAC. It is not known if the file names no directors, and for
// link-local addresses without a MAC.
func (x *examination) isDirector(gateway netip.Addr, link netlink.Link) (known, is bool) {
	named := func(a netip.Addr) bool {
		return slices.ContainsFunc(x.config.Directors, func(d netip.Prefix) bool { return d.Contains(a) })
	}
	if len(x.config.Directors) == 0 {
		return false, false
	}
	if named(gateway) {
		return true, true
	}
	neighbors, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return !gateway.IsLinkLocalUnicast(), false
	}
	var mac net.HardwareAddr
	for _, n := range neighbors {
		if a, ok := netip.AddrFromSlice(n.IP); ok && a.Unmap() == gateway {
			mac = n.HardwareAddr
		}
	}
	for _, n := range neighbors {
		a, ok := netip.AddrFromSlice(n.IP)
		if ok && len(mac) > 0 && n.HardwareAddr.String() == mac.String() && named(a.Unmap()) {
			return true, true
		}
	}
	return !gateway.IsLinkLocalUnicast(), false
}
