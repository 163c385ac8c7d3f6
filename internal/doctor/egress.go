package doctor

import (
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// ways are the ways to backends that this host has.
type ways struct {
	links   map[string]netlink.Link // that packets leave by, by name
	largest map[string]outer        // the longest outer header, by the link's name
	framed  named                   // backends whose frames leave as they are, by the link that they leave by
	blind   named                   // nat backends whose replies no program sees, by link
	routed  named                   // the same of those behind a router, whose replies may come by another
	nat     bool
}

func newWays() *ways {
	return &ways{links: map[string]netlink.Link{}, largest: map[string]outer{},
		framed: named{}, blind: named{}, routed: named{}}
}

// leaveBy adds the way to a backend's VTEP. Whether packets fit there is between the hosts of the tenant's network and
// their VTEPs.
func (w *ways) leaveBy(way hop) {
	if way.link != nil && !way.local {
		w.links[way.link.Attrs().Name] = way.link
	}
}

// outer is the longest outer header that leaves by an interface.
type outer struct {
	mode     model.Mode
	overhead int // the largest possible: the datapath leaves room for that; 0: there is none
	mtu      int
}

// note adds the way to a backend.
func (x *examination) note(w *ways, s model.Service, b model.Backend, way hop) {
	mode := b.ModeIn(s)
	w.nat = w.nat || mode == model.NAT
	if way.link == nil || way.local {
		return
	}
	name := way.link.Attrs().Name
	w.links[name] = way.link
	if before, is := w.largest[name]; !is || b.MaxOverheadIn(&s) > before.overhead {
		w.largest[name] = outer{mode, b.MaxOverheadIn(&s), way.mtu}
	}
	if asItIs(s, b) {
		name := x.below(way.link).Attrs().Name
		w.framed.add(name, b.Name)
	}
	// Full NAT's replies go to an address of the director's: see snat.
	if mode == model.NAT && s.SNAT {
		x.reached[name] = x.reached[name] || x.answersBy(way)
		x.asking[name] = x.asking[name] || !way.gateway.IsValid()
	}
	if mode != model.NAT || s.SNAT || x.attachable(way.link) {
		return
	}
	if way.gateway.IsValid() {
		w.routed.add(name, b.Name)
	} else {
		w.blind.add(name, b.Name)
	}
}

// asItIs says whether a backend's frames are addressed to itself, or as configured: the kernel does
// not send such frames.
func asItIs(s model.Service, b model.Backend) bool {
	return b.ModeIn(s) == model.L2DSR || !b.MAC.IsZero() || b.VLAN != 0
}

// named are backends by the links that lead to them. There may be thousands.
type named map[string]*backendNames

// backendNames are the names of several backends.
type backendNames struct {
	first string
	all   map[string]bool
}

// add adds a backend, if it is not there yet.
func (n named) add(link, backend string) {
	if n[link] == nil {
		n[link] = &backendNames{backend, map[string]bool{}}
	}
	n[link].all[backend] = true
}

// String names the first of them.
func (n *backendNames) String() string {
	if more := len(n.all) - 1; more > 0 {
		return fmt.Sprintf("%s and %d more", n.first, more)
	}
	return n.first
}

// attachable reports whether the configuration has a program on the link, or where the link gets
// its packets from: on the link below it, or on one of its ports.
func (x *examination) attachable(link netlink.Link) bool {
	for ; link != nil; link = x.under(link) {
		if slices.Contains(x.config.Director.Interfaces, link.Attrs().Name) {
			return true
		}
		for _, port := range x.links {
			if port.Attrs().MasterIndex == link.Attrs().Index && slices.Contains(x.config.Director.Interfaces, port.Attrs().Name) {
				return true
			}
		}
	}
	return false
}

// under returns the link whose packets a VLAN or the like sees; nil: there is none.
func (x *examination) under(link netlink.Link) netlink.Link {
	if !slices.Contains([]string{"vlan", "macvlan", "macvtap", "ipvlan"}, link.Type()) || link.Attrs().ParentIndex == link.Attrs().Index {
		return nil
	}
	if parent := x.links[link.Attrs().ParentIndex]; parent != nil {
		return parent
	}
	return nil
}

// below returns the link that packets leave by for a VLAN interface, if the director's program
// writes its tag; other links are their own.
func (x *examination) below(link netlink.Link) netlink.Link {
	below, _ := device.Untagged(link, func(index int) netlink.Link { return x.links[index] })
	return below
}

// egress examines the ways to the backends.
func (x *examination) egress(w *ways) {
	x.sizes(w)
	x.replies(w)
	out := make(map[string]netlink.Link)
	for _, link := range w.links {
		out[x.below(link).Attrs().Name] = x.below(link)
	}
	for _, name := range x.config.Director.Interfaces {
		if link := x.link(name); link != nil {
			x.returns(link, out[link.Attrs().Name] != nil && len(x.config.Director.Interfaces) == 1)
		}
	}
	if w.nat { // replies leave where clients' packets come in
		for _, name := range x.config.Director.Interfaces {
			if link := x.link(name); link != nil {
				out[name] = link
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(out)) {
		x.leaves(out[name], w.framed[name])
	}
}

// replies checks that nat backends' replies come in where a program sees them.
func (x *examination) replies(w *ways) {
	for _, name := range slices.Sorted(maps.Keys(w.blind)) {
		x.fail("nat "+name, "add "+name+" to director.interfaces",
			"nat backend %s is reached through %s, which is not in director.interfaces: its replies are not translated back",
			w.blind[name], name)
	}
	for _, name := range slices.Sorted(maps.Keys(w.routed)) {
		if w.blind[name] != nil {
			continue
		}
		x.warn("nat "+name, "add "+name+" to director.interfaces, or see that replies come by another of them",
			"nat backend %s is behind a router that is reached through %s, which is not in director.interfaces: replies that come by it are not translated back",
			w.routed[name], name)
	}
}

// leastMTU is what IPv6 may rely on (RFC 8200, section 5).
const leastMTU = 1280

// sizes checks that what clients send still fits, with an outer header if there is one.
func (x *examination) sizes(w *ways) {
	clients := x.clientMTU(w)
	for _, name := range x.config.Director.Interfaces {
		link := x.link(name)
		if _, checked := w.largest[name]; link != nil && !checked && link.Attrs().MTU < leastMTU {
			x.fail("mtu "+name, fmt.Sprintf("ip link set %s mtu %d", name, internetMTU),
				"%d is less than IPv6 may rely on: larger packets of clients do not come in", link.Attrs().MTU)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.largest)) {
		if of := w.largest[name]; of.overhead > 0 {
			x.tunnels(name, of, clients)
		} else {
			x.bare(name, of, clients)
		}
	}
}

// tunnels is sizes for one interface by which tunneled packets leave.
func (x *examination) tunnels(name string, of outer, clients int) {
	room := of.mtu - of.overhead
	check := "mtu " + name
	switch {
	case room < leastMTU:
		x.fail(check, fmt.Sprintf("ip link set %s mtu %d", name, max(clients, leastMTU)+of.overhead),
			"%d leaves %d bytes for packets by %s, less than IPv6 may rely on", of.mtu, room, of.mode)
	case room < clients:
		x.warn(check, fmt.Sprintf("ip link set %s mtu %d, and on every link to the backends", name, clients+of.overhead),
			"%d leaves %d bytes for packets by %s, and clients' may have %d: larger ones are answered with \"too big\"",
			of.mtu, room, of.mode, clients)
	default:
		x.ok(check, "%d holds clients' packets of %d and the %d of %s", of.mtu, clients, of.overhead, of.mode)
	}
}

// bare is sizes for one interface by which packets leave without an outer header.
func (x *examination) bare(name string, of outer, clients int) {
	check, fix := "mtu "+name, fmt.Sprintf("ip link set %s mtu %d", name, max(clients, leastMTU))
	switch {
	case of.mtu < leastMTU:
		x.fail(check, fix, "%d is less than IPv6 may rely on", of.mtu)
	case of.mtu < clients:
		x.warn(check, fix, "%d is less than clients' packets may have, %d: larger ones are answered with \"too big\"", of.mtu, clients)
	}
}

// clientMTU is the largest packet that clients may send: as much as links that lead only to clients
// can carry. A link that also leads to backends is larger because of tunnels.
func (x *examination) clientMTU(w *ways) int {
	largest := 0
	for _, name := range x.config.Director.Interfaces {
		if link := x.link(name); link != nil && w.links[name] == nil {
			largest = max(largest, link.Attrs().MTU)
		}
	}
	if largest == 0 {
		return internetMTU
	}
	return largest
}
