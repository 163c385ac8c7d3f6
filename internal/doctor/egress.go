package doctor

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// ways are the ways to backends that this host has.
type ways struct {
	links   map[string]netlink.Link // that packets leave by, by name
	tunnels map[string]tunnel       // the longest outer header, by the link's name
	blind   map[string][]string     // nat backends whose replies no program sees, by link
	nat     bool
}

func newWays() *ways {
	return &ways{make(map[string]netlink.Link), make(map[string]tunnel), make(map[string][]string), false}
}

// tunnel is the longest outer header that leaves by an interface.
type tunnel struct {
	mode     model.Mode
	overhead int // the most that it may ever be: that is what the datapath leaves room for
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
	if overhead := b.MaxOverheadIn(&s); overhead > w.tunnels[name].overhead {
		w.tunnels[name] = tunnel{mode, overhead, way.mtu}
	}
	if mode == model.NAT && !x.attachable(way.link) && !slices.Contains(w.blind[name], b.Name) {
		w.blind[name] = append(w.blind[name], b.Name)
	}
}

// attachable reports whether the configuration has a program on the link, or on
// the one below it: a VLAN's packets are seen there.
func (x *examination) attachable(link netlink.Link) bool {
	interfaces := x.config.Director.Interfaces
	return slices.Contains(interfaces, link.Attrs().Name) || slices.Contains(interfaces, x.below(link).Attrs().Name)
}

// below returns the link that a VLAN interface is on; other links are their own.
func (x *examination) below(link netlink.Link) netlink.Link {
	if parent := x.links[link.Attrs().ParentIndex]; link.Type() == "vlan" && parent != nil {
		return parent
	}
	return link
}

// egress examines the ways to the backends.
func (x *examination) egress(w *ways) {
	x.tunnels(w)
	for _, name := range sortedKeys(w.blind) {
		backends, more := w.blind[name], ""
		if n := len(backends) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		x.fail("nat "+name, "add "+name+" to director.interfaces",
			"nat backend %s%s is reached through %s, which is not in director.interfaces: its replies are not translated back",
			backends[0], more, name)
	}
	out := make(map[string]netlink.Link)
	for _, link := range w.links {
		out[x.below(link).Attrs().Name] = x.below(link)
	}
	if w.nat { // replies leave where clients' packets come in
		for _, name := range x.config.Director.Interfaces {
			if link := x.link(name); link != nil {
				out[name] = link
			}
		}
	}
	for _, name := range sortedKeys(out) {
		x.receives(out[name])
	}
}

// tunnels checks that what clients send still fits with an outer header.
func (x *examination) tunnels(w *ways) {
	clients := x.clientMTU(w)
	for _, name := range sortedKeys(w.tunnels) {
		t := w.tunnels[name]
		room := t.mtu - t.overhead
		check := "mtu " + name
		switch {
		case room < 1280:
			x.fail(check, fmt.Sprintf("ip link set %s mtu %d", name, clients+t.overhead),
				"%d leaves %d bytes for packets by %s, less than IPv6 may rely on", t.mtu, room, t.mode)
		case room < clients:
			x.warn(check, fmt.Sprintf("ip link set %s mtu %d, and on every link to the backends", name, clients+t.overhead),
				"%d leaves %d bytes for packets by %s, and clients' may have %d: larger ones are answered with \"too big\"",
				t.mtu, room, t.mode, clients)
		default:
			x.ok(check, "%d holds clients' packets of %d and the %d of %s", t.mtu, clients, t.overhead, t.mode)
		}
	}
}

// clientMTU is the largest packet that clients may send: as much as the links
// that lead to them only can carry. A link that leads to backends too is larger for
// their tunnels' sake.
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

// receives checks that a veth's other end takes what XDP sends: it does with a
// program of its own or with GRO, and loses it without a count otherwise.
func (x *examination) receives(link netlink.Link) {
	if link.Type() != "veth" {
		return
	}
	const fix = "ethtool -K PEER gro on, at its other end"
	name := link.Attrs().Name
	check := "peer " + name
	fails := func() {
		x.fail(check, fix, "is a veth whose other end has neither an XDP program nor GRO: what is forwarded to it is lost, though it counts as forwarded")
	}
	// Since Linux 6.3 a veth tells whether its peer is ready.
	if features, err := xdpFeatures(link.Attrs().Index); err == nil {
		if features&xdpTransmit == 0 {
			fails()
		} else {
			x.ok(check, "its other end takes what XDP sends")
		}
		return
	}
	peer := x.links[link.Attrs().ParentIndex]
	if peer == nil || link.Attrs().NetNsID >= 0 {
		x.warn(check, fix, "is a veth whose other end is in another namespace: "+
			"without an XDP program or GRO there, what is forwarded to it is lost, though it counts as forwarded")
		return
	}
	gro, err := ethtoolGet(peer.Attrs().Name, unix.ETHTOOL_GGRO)
	if err == nil && gro == 0 && programOf(peer) == "" {
		fails()
		return
	}
	x.ok(check, "its other end, %s, takes what XDP sends", peer.Attrs().Name)
}
