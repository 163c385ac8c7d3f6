package doctor

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// maxListed bounds the findings about single backends.
const maxListed = 20

// hop is the way to a backend.
type hop struct {
	link    netlink.Link
	gateway netip.Addr // zero: the backend is on the link
	local   bool
	kernel  bool // it sends there, and finds the neighbor, if there is one
	mtu     int
}

// backends checks that every backend has a way and a next hop, and what is on the
// ways.
func (x *examination) backends() {
	neighbors := x.neighbors()
	seen := make(map[model.HostAddress]bool)
	w := newWays()
	bad, good := 0, 0
	var without []string // a next hop
	for _, s := range x.config.Services {
		if x.ctx.Err() != nil {
			return
		}
		for _, b := range s.Backends {
			end := model.HostAddress{Segment: b.TenantIn(&s), Address: b.ModeIn(s).TunnelEnd(b.Address, b.Host)}
			var way hop
			var problem string
			var found *Finding
			if end.Segment.IsOverlay() {
				way, found = x.overlayBackend(end, &b, neighbors)
				w.leaveBy(way)
			} else {
				way, problem = x.wayTo(s, b, end.Address)
			}
			if _, own := x.addresses[b.Host]; own { // packets for its pods take no link
				way, problem = hop{local: true}, ""
			}
			if !end.Segment.IsOverlay() {
				x.note(w, s, b, way)
			}
			if seen[end] && b.ModeIn(s) != model.L2DSR {
				continue
			}
			first := !seen[end]
			seen[end] = true
			if !end.Segment.IsOverlay() {
				found = backendProblem(s, b, end, way, problem, neighbors)
			}
			switch {
			case found == nil && first:
				good++
			case found != nil:
				if first {
					without = append(without, end.String())
				}
				if bad++; bad <= maxListed && !x.running {
					x.findings = append(x.findings, *found)
				}
			}
		}
	}
	if bad > maxListed {
		x.warn("backends", "", "%d more have problems like these", bad-maxListed)
	}
	if good > 0 {
		but := ""
		if len(without) > 0 {
			but = ", and not " + model.Some(without)
		}
		x.ok("backends", "%d of %d have a next hop%s", good, len(seen), but)
	}
	x.egress(w)
}

// backendProblem says what keeps packets from a backend; nil: nothing.
func backendProblem(s model.Service, b model.Backend, end model.HostAddress, way hop, problem string, neighbors map[netip.Addr]bool) *Finding {
	check, via := "backend "+end.String(), end.Address
	if way.gateway.IsValid() {
		via = way.gateway
	}
	switch {
	case way.local || !b.MAC.IsZero():
		return nil
	case problem != "":
		return &Finding{Fail, check, problem, "ip route add " + end.Address.String() + " ..."}
	case b.ModeIn(s) == model.L2DSR && way.gateway.IsValid():
		return &Finding{Fail, check,
			fmt.Sprintf("is behind router %s, and service %s sends by l2dsr, which crosses none", way.gateway, s.Name),
			"use ipip or gue, or give its mac"}
	case !neighbors[via] && (!way.kernel || asItIs(s, b)):
		return &Finding{Warn, check, fmt.Sprintf("the MAC address of its next hop %s is not known: it gets no packets until it is", via),
			fmt.Sprintf("ping %s, and see that %s reaches it", via, way.link.Attrs().Name)}
	}
	return nil
}

// wayTo is the way to a backend: by its interface, by that of its segment, or by the kernel's route.
func (x *examination) wayTo(s model.Service, b model.Backend, end netip.Addr) (hop, string) {
	tenant := b.TenantIn(&s)
	var by netlink.Link
	given := cmp.Or(b.Interface, x.config.SegmentInterfaces()[tenant])
	switch {
	case given != "":
		if by = x.link(given); by == nil {
			return hop{}, "there is no interface " + given
		}
	case tenant == (model.Segment{}):
		return x.way(end)
	default:
		if by = x.vlanLink(tenant.ID); by == nil && b.MAC.IsZero() {
			return hop{}, fmt.Sprintf("this host has no interface in %s: give mac, or interface", tenant)
		}
		if by == nil && len(x.config.Director.Interfaces) > 0 {
			by = x.named(x.config.Director.Interfaces[0])
		}
		if by == nil {
			return hop{}, "the director's first interface is not there"
		}
	}
	h := hop{link: by, mtu: by.Attrs().MTU}
	if way, problem := x.way(end); problem == "" && !way.local && way.link != nil && way.link.Attrs().Index == by.Attrs().Index {
		h.gateway = way.gateway
	}
	return h, ""
}

// named is an interface of this host; nil: there is none.
func (x *examination) named(name string) netlink.Link {
	for _, link := range x.links {
		if link.Attrs().Name == name {
			return link
		}
	}
	return nil
}

// vlanLink is the interface for a VLAN on one of the director's; nil: there is none.
func (x *examination) vlanLink(id uint32) netlink.Link {
	for _, name := range x.config.Director.Interfaces {
		parent := x.named(name)
		for _, link := range x.links {
			if vlan, is := link.(*netlink.Vlan); is && parent != nil && vlan.ParentIndex == parent.Attrs().Index && uint32(vlan.VlanId) == id {
				return link
			}
		}
	}
	return nil
}

// route is the way to an address, or why there is none.
type route struct {
	hop
	problem string
}

// way asks the kernel for the route to an address, once.
func (x *examination) way(to netip.Addr) (hop, string) {
	r, asked := x.routes[to]
	if !asked {
		r.hop, r.problem = x.query(to)
		x.routes[to] = r
	}
	return r.hop, r.problem
}

func (x *examination) query(to netip.Addr) (hop, string) {
	if err := x.ctx.Err(); err != nil {
		return hop{}, err.Error()
	}
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return hop{}, fmt.Sprintf("there is no route to it (%v)", err)
	}
	route := routes[0]
	h := hop{link: x.links[route.LinkIndex], local: route.Type == unix.RTN_LOCAL}
	if h.link == nil {
		return hop{}, "the route to it leaves by no interface of this host"
	}
	h.mtu, h.kernel = h.link.Attrs().MTU, !h.local && x.byKernel(x.below(h.link))
	if route.MTU != 0 {
		h.mtu = min(h.mtu, route.MTU)
	}
	gateway := route.Gw
	if via, ok := route.Via.(*netlink.Via); ok {
		gateway = via.Addr
	}
	if g, ok := netip.AddrFromSlice(gateway); ok {
		h.gateway = g.Unmap()
	}
	return h, ""
}

// neighbors returns the addresses whose MAC the kernel knows.
func (x *examination) neighbors() map[netip.Addr]bool {
	known := make(map[netip.Addr]bool)
	list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return known
	}
	const dead = netlink.NUD_INCOMPLETE | netlink.NUD_FAILED | netlink.NUD_NONE
	for _, n := range list {
		if a, ok := netip.AddrFromSlice(n.IP); ok && len(n.HardwareAddr) == len(net.HardwareAddr{0, 0, 0, 0, 0, 0}) && n.State&dead == 0 {
			known[a.Unmap()] = true
		}
	}
	return known
}
