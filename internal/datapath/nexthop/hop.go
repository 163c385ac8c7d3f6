package nexthop

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// Hop is how packets leave for a backend. A zero MAC means that it is not
// known (yet).
type Hop struct {
	Local   bool   // the address is this host's own
	Link    int    // the interface that the route leads into
	Answers int    // the interface by which answers to this host may come where XDP does not see them; 0: none
	Ifindex int    // the interface by which packets leave: the one that Link is on, or that leads there
	VLAN    uint16 // tag to leave with
	Routed  bool   // packets are routed into the network that the route leads to: a VLAN's, or by the kernel
	MAC     model.MAC
	Via     Neighbor // that has this MAC address; zero: the address is not a neighbor's, or is configured
	Source  model.MAC
	MTU     int
	Address netip.Addr // of this host, as the kernel would choose it
	Outer   Outer      // of a tunnel into a tenant's network
	Problem string     // why there is no way; empty: there is, or its neighbor has not answered yet
}

// Route is the kernel's way to an address: a next hop without its MAC address, which the neighbor
// has.
type Route struct {
	Hop Hop
	Via Neighbor
}

// Resolve returns the next hop of a backend. The configuration wins over what the kernel says;
// interfaces are the director's own.
func (r *Resolver) Resolve(b model.TableBackend, interfaces []string) Hop {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routeFrom(interfaces)
	return r.hopOf(b, interfaces, r.macOf, r.onward.hop)
}

// Imagine returns what Resolve would for a backend that may never exist: the kernel is not asked to
// find its neighbor. awaits says that the kernel would be asked, and has not found it yet.
func (r *Resolver) Imagine(b model.TableBackend, interfaces []string) (hop Hop, awaits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routeFrom(interfaces)
	hop = r.hopOf(b, interfaces, func(n Neighbor) model.MAC {
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
func (r *Resolver) byKernel(way Route, interfaces []string) (by, real netlink.Link) {
	if way.Via.Ifindex == 0 {
		return nil, nil
	}
	by = r.link(way.Via.Ifindex)
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
func (r *Resolver) hopOf(b model.TableBackend, interfaces []string, macOf func(Neighbor) model.MAC,
	onward func(Hop, netlink.Link) Hop) Hop {
	if b.Host.IsValid() && r.cached(b.Host).Hop.Local {
		// Its packets leave by no interface, but still need a source address.
		return Hop{Local: true, MTU: 0xffff, Address: b.Host}
	}
	if b.Segment.IsOverlay() {
		return r.hopInside(b, interfaces, macOf, onward)
	}
	if b.OffRoutes() {
		return r.hopOn(b, interfaces, macOf, onward)
	}
	way := r.cached(b.TunnelEnd())
	hop := way.Hop
	if hop.Local {
		return hop
	}
	by, real := r.byKernel(way, interfaces)
	if by != nil && isForItself(b) {
		// A veth's other end decides whether it sends, and that end may be out of sight.
		if r.onward.egress.Sending(real) == device.Lost {
			return Hop{Address: hop.Address, Problem: fmt.Sprintf(
				"XDP cannot send into %s (%s), and the kernel cannot send what is for the backend's own MAC address or tag: mode l2dsr, mac, vlan",
				real.Attrs().Name, real.Type())}
		}
		by = nil
	}
	// These, and neighbors, mostly answer by the same interface. If all interfaces run XDP in
	// generic mode, rules may lead answers to the director's interface, as in a pod.
	if by != nil || way.Via.Address == b.TunnelEnd() && r.onward.egress.InDriver(interfaces...) {
		hop.Answers = hop.Link
	}
	switch {
	case by != nil:
		hop = onward(hop, by)
	case !b.MAC.IsZero():
		hop.MAC = b.MAC
		if hop.Ifindex == 0 && len(interfaces) > 0 {
			hop.leaveBy(device.ByName(interfaces[0]), r.link)
		}
	case !way.Via.Address.IsValid():
		hop.Problem = "there is no route to it"
	case b.Mode == model.L2DSR && way.Via.Address != b.Address:
		hop.Problem = fmt.Sprintf("it is behind router %v, and l2dsr needs it on a link of the director's", way.Via.Address)
		// A router would send the packet back here, because it is still addressed to the VIP: it
		// would go round until its TTL ends. This happens when the backend's link is down and only
		// the default route is left.
	default:
		hop.MAC, hop.Via = macOf(way.Via), way.Via
	}
	hop.leaveAs(b)
	return hop
}

// leaveAs fills in what the configuration says.
func (h *Hop) leaveAs(b model.TableBackend) {
	if b.VLAN != 0 {
		h.VLAN = b.VLAN
	}
	if b.MTU != 0 {
		h.MTU = min(h.MTU, int(b.MTU))
	}
}

// hopOn is the next hop of a backend that is on the link of an interface, whatever the host's routes say: its
// address may be this host's own, or one of another tenant. The lock is held.
func (r *Resolver) hopOn(b model.TableBackend, interfaces []string, macOf func(Neighbor) model.MAC,
	onward func(Hop, netlink.Link) Hop) (hop Hop) {
	by, problem := r.interfaceOf(b, interfaces)
	if by == nil {
		return Hop{Problem: problem}
	}
	hop.leaveBy(by, r.link)
	end := b.TunnelEnd()
	hop.Address = r.ownOn(by.Attrs().Index, end.Is6())
	way := r.cached(end)
	routed := !way.Hop.Local && way.Via.Ifindex == by.Attrs().Index // the kernel's route leads there, too
	if real, _ := device.Untagged(by, r.link); r.onward.egress.ByKernel(real, interfaces) {
		switch {
		case !isForItself(b) && routed:
			hop.Answers = hop.Link
			hop = onward(hop, by)
			hop.leaveAs(b)
			return hop
		case r.onward.egress.Sending(real) == device.Lost:
			return Hop{Address: hop.Address, Problem: fmt.Sprintf("XDP cannot send into %s (%s), and the kernel sends what its route leads there, but not mode l2dsr, mac or vlan", real.Attrs().Name, real.Type())}
		}
	}
	if r.onward.egress.InDriver(interfaces...) {
		hop.Answers = hop.Link
	}
	if hop.leaveAs(b); !b.MAC.IsZero() {
		hop.MAC = b.MAC
		return hop
	}
	hop.Via = Neighbor{by.Attrs().Index, end}
	if routed && way.Via.Address.IsValid() {
		hop.Via = way.Via // it may be behind a router
	}
	switch {
	case !hop.Address.IsValid() && end.Is4(): // with IPv6 a link-local one is enough
		hop.Problem = fmt.Sprintf("this host has no address on %s from which to ask for its MAC address: give mac", by.Attrs().Name)
	case b.Mode == model.L2DSR && hop.Via.Address != b.Address:
		hop.Problem = fmt.Sprintf("it is behind router %v, and l2dsr needs it on a link of the director's", hop.Via.Address)
	default:
		hop.MAC = macOf(hop.Via)
	}
	if hop.Problem != "" {
		hop.Via = Neighbor{}
	}
	return hop
}

// interfaceOf returns the interface on whose link a backend is, or why there is none: the one that it names, else
// the one of its VLAN, else, where its MAC address is known, the director's first one, whose packets have tags.
// The lock is held.
func (r *Resolver) interfaceOf(b model.TableBackend, interfaces []string) (by netlink.Link, problem string) {
	if b.Interface != "" {
		named := device.ByName(b.Interface)
		if named == nil {
			return nil, fmt.Sprintf("there is no interface %s", b.Interface)
		}
		return r.link(named.Attrs().Index), ""
	}
	if by = r.vlanOn(interfaces, b.Segment.ID); by != nil {
		return by, ""
	}
	if b.MAC.IsZero() {
		return nil, fmt.Sprintf("this host has no interface in %s: give mac, or interface", b.Segment)
	}
	if len(interfaces) == 0 {
		return nil, "the director has no interface"
	}
	if by = device.ByName(interfaces[0]); by == nil {
		return nil, fmt.Sprintf("there is no interface %s", interfaces[0])
	}
	return by, ""
}

// HasVLAN reports whether the host has an interface for a VLAN on one of the director's interfaces.
func (r *Resolver) HasVLAN(interfaces []string, id uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.vlanOn(interfaces, id) != nil
}

// vlanOn returns the interface for a VLAN on one of the director's interfaces; nil: there is none. The lock is
// held.
func (r *Resolver) vlanOn(interfaces []string, id uint32) netlink.Link {
	if r.vlans == nil {
		r.readVLANs()
	}
	for _, name := range interfaces {
		if link := device.ByName(name); link != nil {
			if index, has := r.vlans[vlanOf{link.Attrs().Index, id}]; has {
				return r.link(index)
			}
		}
	}
	return nil
}

// vlanOf is a VLAN on an interface.
type vlanOf struct {
	parent int
	id     uint32
}

// readVLANs finds the host's VLAN interfaces. The lock is held.
func (r *Resolver) readVLANs() {
	r.vlans = map[vlanOf]int{}
	links, err := r.netlink.LinkList()
	if err != nil {
		r.log.Warn("read interfaces", "error", err)
	}
	for _, link := range links {
		if vlan, is := link.(*netlink.Vlan); is {
			r.vlans[vlanOf{vlan.ParentIndex, uint32(vlan.VlanId)}] = vlan.Index
		}
	}
}

// NeighborOf returns the address that has to answer so that a backend can be reached: its own or
// its router's.
func (r *Resolver) NeighborOf(b model.TableBackend) netip.Addr {
	end := b.TunnelEnd()
	if b.Segment.IsOverlay() {
		r.mu.Lock()
		in, _ := r.places(b)
		r.mu.Unlock()
		end = in.Host.VTEP
	}
	return r.RouteTo(end).Via.Address
}

// NameOf returns an interface's name as it is now.
func (r *Resolver) NameOf(index int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if link := r.link(index); link != nil {
		return link.Attrs().Name
	}
	return fmt.Sprintf("interface %d, which is gone", index)
}

// IsOwn says whether an address is one of this host's.
func (r *Resolver) IsOwn(a netip.Addr) bool { return r.RouteTo(a).Hop.Local }

// LinkOf returns the link that an address is on, and this host's next hop there; false: it is on no
// link.
func (r *Resolver) LinkOf(a netip.Addr) (int, Hop, bool) {
	way := r.RouteTo(a)
	return way.Via.Ifindex, way.Hop, way.Via.Address == a && way.Hop.Address.IsValid()
}

// RouteTo is the kernel's way to an address.
func (r *Resolver) RouteTo(a netip.Addr) Route {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cached(a)
}

// cached asks the kernel only once for each address. The lock is held.
func (r *Resolver) cached(a netip.Addr) Route {
	way, known := r.routes[a]
	if !known {
		way = r.lookup(a)
		r.routes[a] = way
	}
	return way
}

// lookup asks the kernel for the route to an address.
func (r *Resolver) lookup(address netip.Addr) Route {
	routes, err := r.netlink.RouteGetWithOptions(address.AsSlice(), r.inVRF())
	if err != nil || len(routes) == 0 {
		r.log.Debug("no route to backend", "address", address, "error", err)
		return Route{}
	}
	found := routes[0]
	if found.Type == unix.RTN_LOCAL {
		return Route{Hop: Hop{Local: true, MTU: 0xffff}}
	}
	var way Route
	way.Hop.leaveBy(r.link(found.LinkIndex), r.link)
	if source, ok := netip.AddrFromSlice(found.Src); ok {
		way.Hop.Address = source.Unmap()
	}
	if found.MTU != 0 {
		way.Hop.MTU = min(way.Hop.MTU, found.MTU)
	}
	way.Via = Neighbor{found.LinkIndex, address}
	gateway := found.Gw
	if to, ok := found.Via.(*netlink.Via); ok {
		gateway = to.Addr
	}
	if a, ok := netip.AddrFromSlice(gateway); ok {
		way.Via.Address = a.Unmap()
	}
	return way
}

// leaveBy fills in what the interface decides. A VLAN interface becomes its parent and a tag, if
// the program can write that tag: XDP sends on real interfaces only.
func (h *Hop) leaveBy(by netlink.Link, link func(index int) netlink.Link) {
	if by == nil {
		return
	}
	attrs := by.Attrs()
	h.Link, h.MTU = attrs.Index, attrs.MTU
	copy(h.Source[:], attrs.HardwareAddr)
	real, tag := device.Untagged(by, link)
	h.Ifindex, h.VLAN, h.Routed = real.Attrs().Index, tag, by.Type() == "vlan"
}

// link returns an interface by its index; nil: there is none. The lock is held.
func (r *Resolver) link(index int) netlink.Link {
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

// OwnAddress is the address to send from: the kernel's choice for the route, or, if agents would
// not accept that one, the first address on its interface that they accept.
func OwnAddress(hop Hop, directors []netip.Prefix) netip.Addr {
	accepted := func(a netip.Addr) bool {
		return slices.ContainsFunc(directors, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if len(directors) == 0 || !hop.Address.IsValid() || accepted(hop.Address) {
		return hop.Address
	}
	link, err := netlink.LinkByIndex(hop.Link)
	if err != nil {
		return hop.Address
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return hop.Address
	}
	for _, a := range addresses {
		own, _ := netip.AddrFromSlice(a.IP)
		if own = own.Unmap(); own.Is4() == hop.Address.Is4() && accepted(own) {
			return own
		}
	}
	return hop.Address
}

// routeFrom sets the VRF in which routes are looked up: that of the director's first
// interface, where packets come in, if it is in one. The lock is held.
func (r *Resolver) routeFrom(interfaces []string) {
	if r.from != nil && slices.Equal(r.from, interfaces) {
		return
	}
	r.from = slices.Clone(interfaces)
	if r.from == nil {
		r.from = []string{}
	}
	vrf := 0
	if len(interfaces) > 0 {
		if link := device.ByName(interfaces[0]); link != nil {
			vrf = r.vrfOf(link)
		}
	}
	if vrf != r.vrf {
		r.vrf = vrf
		clear(r.routes)
		clear(r.addresses)
	}
}

// vrfOf returns the index of the VRF that an interface is in, directly or by a bridge, bond or VLAN
// interface; 0: it is in none.
func (r *Resolver) vrfOf(link netlink.Link) int {
	for link != nil && link.Attrs().MasterIndex != 0 {
		link = r.link(link.Attrs().MasterIndex)
		if link != nil && link.Type() == "vrf" {
			return link.Attrs().Index
		}
	}
	return 0
}

// inVRF are the options for asking about a route. The kernel takes a VRF as outgoing interface for
// its table (Documentation/networking/vrf.rst).
func (r *Resolver) inVRF() *netlink.RouteGetOptions {
	if r.vrf == 0 {
		return nil
	}
	return &netlink.RouteGetOptions{OifIndex: r.vrf}
}

// linkFamily is a family on a link.
type linkFamily struct {
	ifindex int
	six     bool
}

// AddressFor returns this host's address of a family on the way to an address, which may be of the
// other family: a tunnel of either family carries both. Invalid: the kernel is to choose.
func (r *Resolver) AddressFor(to netip.Addr, six bool) netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	way := r.cached(to)
	if to.Is6() == six {
		return way.Hop.Address
	}
	return r.ownOn(way.Via.Ifindex, six)
}

// AddressOn returns this host's address of a family on a link; invalid: there is none.
func (r *Resolver) AddressOn(link int, six bool) netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ownOn(link, six)
}

// ownOn is addressOn, asked once. The lock is held.
func (r *Resolver) ownOn(ifindex int, six bool) netip.Addr {
	key := linkFamily{ifindex, six}
	own, known := r.addresses[key]
	if !known {
		own = r.addressOn(ifindex, six)
		r.addresses[key] = own
	}
	return own
}

// addressOn returns the first address on a link to which hosts beyond the link can reply.
func (r *Resolver) addressOn(ifindex int, six bool) netip.Addr {
	family := netlink.FAMILY_V4
	if six {
		family = netlink.FAMILY_V6
	}
	link := r.link(ifindex)
	if link == nil {
		return netip.Addr{}
	}
	list, err := r.netlink.AddrList(link, family)
	if err != nil {
		r.log.Warn("read addresses", "interface", link.Attrs().Name, "error", err)
	}
	const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED
	for _, a := range list {
		own, ok := netip.AddrFromSlice(a.IP)
		if ok && a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unusable == 0 {
			return own.Unmap()
		}
	}
	return netip.Addr{}
}
