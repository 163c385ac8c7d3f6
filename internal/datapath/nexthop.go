package datapath

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// nextHop is how packets leave for a backend. A zero mac means that it is not
// known (yet).
type nextHop struct {
	local   bool   // the address is this host's own
	link    int    // the interface that the route leads into
	answers int    // the interface by which answers to this host may come where XDP does not see them; 0: none
	ifindex int    // the interface by which packets leave: the one that link is on, or that leads there
	vlan    uint16 // tag to leave with
	routed  bool   // packets are routed into the network that the route leads to: a VLAN's, or by the kernel
	mac     model.MAC
	via     neighbor // that has this MAC address; zero: the address is not a neighbor's, or is configured
	source  model.MAC
	mtu     int
	address netip.Addr // of this host, as the kernel would choose it
	problem string     // why there is no way; empty: there is, or its neighbor has not answered yet
}

// route is the kernel's way to an address: a next hop without its MAC address, which the neighbor
// has.
type route struct {
	hop nextHop
	via neighbor
}

// resolve returns the next hop of a backend. The configuration wins over what the kernel says;
// interfaces are the director's own.
func (r *resolver) resolve(b model.TableBackend, interfaces []string) nextHop {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routeFrom(interfaces)
	return r.hopOf(b, interfaces, r.macOf, r.onward.hop)
}

// imagine returns what resolve would for a backend that may never exist: the kernel is not asked to
// find its neighbor. awaits says that the kernel would be asked, and has not found it yet.
func (r *resolver) imagine(b model.TableBackend, interfaces []string) (hop nextHop, awaits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routeFrom(interfaces)
	hop = r.hopOf(b, interfaces, func(n neighbor) model.MAC {
		if r.macs == nil {
			r.readNeighbors()
		}
		awaits = r.macs[n].IsZero()
		return r.macs[n]
	}, r.onward.hopBy)
	return hop, awaits
}

// byKernel returns the interface by which the kernel has to send, because XDP cannot; nil: the
// director's program sends. The lock is held.
func (r *resolver) byKernel(way route, interfaces []string) (by, real netlink.Link) {
	if way.via.ifindex == 0 {
		return nil, nil
	}
	by = r.link(way.via.ifindex)
	if by == nil {
		return nil, nil
	}
	if real, _ = device.Untagged(by, r.link); !r.onward.egress.ByKernel(real, interfaces) {
		return nil, nil
	}
	return by, real
}

// isForItself reports whether frames are for the backend's own MAC address, or have a tag of its
// own: they are sent as they are, and the kernel would rewrite both.
func isForItself(b model.TableBackend) bool {
	return b.Mode == model.L2DSR || !b.MAC.IsZero() || b.VLAN != 0
}

// hopOf is the next hop of a backend. The lock is held.
func (r *resolver) hopOf(b model.TableBackend, interfaces []string, macOf func(neighbor) model.MAC,
	onward func(nextHop, netlink.Link) nextHop) nextHop {
	if b.Host.IsValid() && r.cached(b.Host).hop.local {
		// Its packets leave by no interface, but still need a source address.
		return nextHop{local: true, mtu: 0xffff, address: b.Host}
	}
	way := r.cached(b.TunnelEnd())
	hop := way.hop
	if hop.local {
		return hop
	}
	by, real := r.byKernel(way, interfaces)
	if by != nil && isForItself(b) {
		// A veth's other end decides whether it sends, and that end may be out of sight.
		if r.onward.egress.Sending(real) == device.Lost {
			return nextHop{address: hop.address, problem: fmt.Sprintf(
				"XDP cannot send into %s (%s), and the kernel cannot send what is for the backend's own MAC address or tag: mode l2dsr, mac, vlan",
				real.Attrs().Name, real.Type())}
		}
		by = nil
	}
	// These, and neighbors, mostly answer by the same interface. If all interfaces run XDP in
	// generic mode, rules may lead answers to the director's interface, as in a pod.
	if by != nil || way.via.address == b.TunnelEnd() && r.onward.egress.InDriver(interfaces...) {
		hop.answers = hop.link
	}
	switch {
	case by != nil:
		hop = onward(hop, by)
	case !b.MAC.IsZero():
		hop.mac = b.MAC
		if hop.ifindex == 0 && len(interfaces) > 0 {
			hop.leaveBy(linkByName(interfaces[0]), r.link)
		}
	case !way.via.address.IsValid():
		hop.problem = "there is no route to it"
	case b.Mode == model.L2DSR && way.via.address != b.Address:
		hop.problem = fmt.Sprintf("it is behind router %v, and l2dsr needs it on a link of the director's", way.via.address)
		// A router would send the packet back here, because it is still addressed to the VIP: it
		// would go round until its TTL ends. This happens when the backend's link is down and only
		// the default route is left.
	default:
		hop.mac, hop.via = macOf(way.via), way.via
	}
	if b.VLAN != 0 {
		hop.vlan = b.VLAN
	}
	if b.MTU != 0 {
		hop.mtu = min(hop.mtu, int(b.MTU))
	}
	return hop
}

// neighborOf returns the address that has to answer so that a backend can be reached: its own or
// its router's.
func (r *resolver) neighborOf(b model.TableBackend) netip.Addr {
	return r.routeTo(b.TunnelEnd()).via.address
}

// nameOf returns an interface's name as it is now.
func (r *resolver) nameOf(index int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if link := r.link(index); link != nil {
		return link.Attrs().Name
	}
	return fmt.Sprintf("interface %d, which is gone", index)
}

// isOwn says whether an address is one of this host's.
func (r *resolver) isOwn(a netip.Addr) bool { return r.routeTo(a).hop.local }

// linkOf returns the link that an address is on, and this host's next hop there; false: it is on no
// link.
func (r *resolver) linkOf(a netip.Addr) (int, nextHop, bool) {
	way := r.routeTo(a)
	return way.via.ifindex, way.hop, way.via.address == a && way.hop.address.IsValid()
}

// routeTo is the kernel's way to an address.
func (r *resolver) routeTo(a netip.Addr) route {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cached(a)
}

// cached asks the kernel only once for each address. The lock is held.
func (r *resolver) cached(a netip.Addr) route {
	way, known := r.routes[a]
	if !known {
		way = r.lookup(a)
		r.routes[a] = way
	}
	return way
}

// lookup asks the kernel for the route to an address.
func (r *resolver) lookup(address netip.Addr) route {
	routes, err := r.netlink.RouteGetWithOptions(address.AsSlice(), r.inVRF())
	if err != nil || len(routes) == 0 {
		r.log.Debug("no route to backend", "address", address, "error", err)
		return route{}
	}
	found := routes[0]
	if found.Type == unix.RTN_LOCAL {
		return route{hop: nextHop{local: true, mtu: 0xffff}}
	}
	var way route
	way.hop.leaveBy(r.link(found.LinkIndex), r.link)
	if source, ok := netip.AddrFromSlice(found.Src); ok {
		way.hop.address = source.Unmap()
	}
	if found.MTU != 0 {
		way.hop.mtu = min(way.hop.mtu, found.MTU)
	}
	way.via = neighbor{found.LinkIndex, address}
	gateway := found.Gw
	if to, ok := found.Via.(*netlink.Via); ok {
		gateway = to.Addr
	}
	if a, ok := netip.AddrFromSlice(gateway); ok {
		way.via.address = a.Unmap()
	}
	return way
}

// leaveBy fills in what the interface decides. A VLAN interface becomes its parent and a tag, if
// the program can write that tag: XDP sends on real interfaces only.
func (h *nextHop) leaveBy(by netlink.Link, link func(index int) netlink.Link) {
	if by == nil {
		return
	}
	attrs := by.Attrs()
	h.link, h.mtu = attrs.Index, attrs.MTU
	copy(h.source[:], attrs.HardwareAddr)
	real, tag := device.Untagged(by, link)
	h.ifindex, h.vlan, h.routed = real.Attrs().Index, tag, by.Type() == "vlan"
}

// link returns an interface by its index; nil: there is none. The lock is held.
func (r *resolver) link(index int) netlink.Link {
	if link, known := r.links[index]; known {
		return link
	}
	link, err := r.netlink.LinkByIndex(index)
	if err != nil {
		return nil
	}
	r.links[index] = link
	return link
}
