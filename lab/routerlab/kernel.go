package routerlab

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/lab/netlab"
)

// NextHops returns where the kernel of a host sends packets to a prefix: the sorted next hops of
// the route to exactly that prefix, or none if there is no such route.
func NextHops(h *netlab.Host, prefix netip.Prefix) (hops []netip.Addr, err error) {
	family := netlink.FAMILY_V4
	if prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	dst := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
	err = h.Do(func() error {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
		if err != nil {
			return fmt.Errorf("routes of %s: %w", h.Name, err)
		}
		for _, route := range routes {
			hops = append(hops, gateways(&route)...)
		}
		return nil
	})
	slices.SortFunc(hops, netip.Addr.Compare)
	return hops, err
}

func gateways(route *netlink.Route) (list []netip.Addr) {
	add := func(gw net.IP, via netlink.Destination) {
		if other, is := via.(*netlink.Via); is {
			gw = other.Addr // an IPv4 route over IPv6
		}
		if a, ok := netip.AddrFromSlice(gw); ok {
			list = append(list, a.Unmap())
		}
	}
	add(route.Gw, route.Via)
	for _, hop := range route.MultiPath {
		add(hop.Gw, hop.Via)
	}
	return list
}
