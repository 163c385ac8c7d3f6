package doctor

import (
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// snat checks that replies to full NAT's source addresses come to this host, and where a program
// sees them. Where the address is decides by which way backends send them, not the way to the
// backends.
func (x *examination) snat() {
	// In tenants' networks in VXLAN and Geneve the director itself answers for these addresses.
	if !slices.ContainsFunc(x.config.Services, func(s model.Service) bool {
		return s.SNAT && slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return !b.TenantIn(&s).IsOverlay() })
	}) {
		return
	}
	for _, a := range x.config.Director.SNAT.Addresses {
		check := "snat " + a.String()
		index, here := x.addresses[a]
		if !here && x.config.Director.SNAT.Announce {
			x.ok(check, "is announced by weir")
			continue
		}
		if !here {
			x.away(check, a)
			continue
		}
		link := x.links[index]
		if link == nil || x.takesReplies(link) {
			x.ok(check, "is an address of this host")
			continue
		}
		x.unseen(check, a, link)
	}
}

// away is about an address that no interface of this host has. Backends of its network, on a link
// of this host, ask on the link which host has it. Others reach it by their routes.
func (x *examination) away(check string, a netip.Addr) {
	if way, problem := x.way(a); problem == "" && way.local {
		x.ok(check, "is local to this host by a route")
		return
	}
	add := "ip addr add " + netip.PrefixFrom(a, a.BitLen()).String() + " dev "
	for _, name := range slices.Sorted(maps.Keys(x.asking)) {
		if link := x.link(name); x.asking[name] && link != nil && inNetworkOf(link, a) && !answeredFor(link, a) {
			x.fail(check, add+name, "is on no interface of this host: backends on %s ask for it by ARP or neighbor requests, and nobody answers", name)
			return
		}
	}
	x.warn(check, add+"IFACE, or see that the backends' routes to it lead here",
		"is on no interface of this host: nobody answers ARP and neighbor requests for it")
}

// inNetworkOf says whether an interface has an address whose network has this one, too.
func inNetworkOf(link netlink.Link, a netip.Addr) bool {
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	return err == nil && slices.ContainsFunc(addresses, func(of netlink.Addr) bool { return of.Contains(a.AsSlice()) })
}

// answeredFor says whether the kernel answers for an address of another host on an interface
// (ip neighbor add proxy).
func answeredFor(link netlink.Link, a netip.Addr) bool {
	list, err := netlink.NeighProxyList(link.Attrs().Index, netlink.FAMILY_ALL)
	return err == nil && slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.IP.Equal(a.AsSlice()) })
}

// answersBy says whether the director takes a backend's answers by the interface that it is reached
// by: without a router, or by the kernel.
func (x *examination) answersBy(way hop) bool {
	return x.byKernel(x.below(way.link)) || !way.gateway.IsValid() && x.sending.InDriver(x.config.Director.Interfaces...)
}

// takesReplies says whether replies that come by an interface come to a program.
func (x *examination) takesReplies(link netlink.Link) bool {
	name := link.Attrs().Name
	return x.attachable(link) || x.reached[name] || slices.Contains(x.config.Director.ReplyInterfaces, name)
}

// unseen is about an address on an interface without a program. If hosts of its network are behind
// that interface, their replies come by it. A single address is reached by the way that routers
// know, or by an overlay if it is the overlay's.
func (x *examination) unseen(check string, a netip.Addr, link netlink.Link) {
	name, xdp := link.Attrs().Name, device.RunsInDriver(link)
	fix := "add " + name + " to director.interfaces"
	if !xdp {
		fix = "add " + name + " to director.reply-interfaces"
	}
	const text = "is an address of %s, which is not in director.interfaces: replies that come by it are not translated back"
	switch inNetwork := isInNetwork(link, a); {
	case link.Attrs().Flags&net.FlagLoopback != 0 || link.Type() == "dummy" || xdp && !inNetwork:
		x.ok(check, "is an address of this host")
	case inNetwork:
		x.fail(check, fix, text, name)
	default:
		x.warn(check, fix, text, name)
	}
}

// isInNetwork says whether an interface has an address as one of a network.
func isInNetwork(link netlink.Link, a netip.Addr) bool {
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	return err == nil && slices.ContainsFunc(addresses, func(of netlink.Addr) bool {
		own, ok := netip.AddrFromSlice(of.IP)
		ones, bits := of.Mask.Size()
		return ok && own.Unmap() == a && ones < bits
	})
}
