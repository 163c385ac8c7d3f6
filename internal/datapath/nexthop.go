package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// nextHop is how packets leave for a backend. A zero mac means that it is not
// known (yet).
type nextHop struct {
	local   bool // the address is this host's own
	ifindex int
	vlan    uint16 // tag to leave with
	mac     model.MAC
	source  model.MAC
	mtu     int
	address netip.Addr // of this host, as the kernel would choose it
}

// settle is how long changes are collected before next hops are worked out again.
const settle = 20 * time.Millisecond

// resolver finds next hops through the kernel's routes and neighbours, and tells
// when any of it has changed. The kernel keeps the neighbours fresh by itself.
type resolver struct {
	log     *slog.Logger
	changed func()
	stop    chan struct{}
	done    sync.WaitGroup

	mu    sync.Mutex
	links map[int]netlink.Link
	hops  map[netip.Addr]nextHop // empty after a change
}

func newResolver(log *slog.Logger, changed func()) (*resolver, error) {
	r := &resolver{log: log, changed: changed, stop: make(chan struct{}), hops: map[netip.Addr]nextHop{}}
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch routes and neighbours: %w", err)
	}
	events := make(chan struct{}, 1)
	r.done.Go(func() { r.listen(socket, events) })
	r.done.Go(func() { r.run(events) })
	r.done.Go(func() {
		<-r.stop
		socket.Close()
	})
	return r, nil
}

func (r *resolver) close() {
	close(r.stop)
	r.done.Wait()
}

// listen makes every message, read or lost, an event: what has changed is asked
// for afterwards, so nothing depends on having seen each one.
func (r *resolver) listen(socket *nl.NetlinkSocket, events chan<- struct{}) {
	for {
		_, _, err := socket.Receive()
		select {
		case <-r.stop:
			return
		default:
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			r.log.Error("watch routes and neighbours", "error", err)
			return
		}
		select {
		case events <- struct{}{}:
		default:
		}
	}
}

func (r *resolver) run(events <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-events:
			timer.Reset(settle)
			select {
			case <-r.stop:
				return
			case <-timer.C:
			}
			r.forget()
			r.changed()
		}
	}
}

func (r *resolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links = nil
	clear(r.hops)
}

// resolve returns the next hop of a backend. What is configured wins over what
// the kernel says; interfaces are the director's own.
func (r *resolver) resolve(b model.TableBackend, interfaces []string) nextHop {
	r.mu.Lock()
	defer r.mu.Unlock()
	hop, known := r.hops[b.Address]
	if !known {
		hop = r.lookup(b.Address, b.MAC.IsZero())
		r.hops[b.Address] = hop
	}
	if hop.local {
		return hop
	}
	if !b.MAC.IsZero() {
		hop.mac = b.MAC
		if hop.ifindex == 0 && len(interfaces) > 0 {
			hop.leaveBy(r.linkByName(interfaces[0]))
		}
	}
	if b.VLAN != 0 {
		hop.vlan = b.VLAN
	}
	if b.MTU != 0 {
		hop.mtu = min(hop.mtu, int(b.MTU))
	}
	return hop
}

// lookup asks the kernel for the route to an address and the neighbour on it.
func (r *resolver) lookup(address netip.Addr, neighbour bool) nextHop {
	var hop nextHop
	routes, err := netlink.RouteGet(address.AsSlice())
	if err != nil || len(routes) == 0 {
		r.log.Debug("no route to backend", "address", address, "error", err)
		return hop
	}
	route := routes[0]
	if route.Type == unix.RTN_LOCAL {
		return nextHop{local: true, mtu: 0xffff}
	}
	link := r.link(route.LinkIndex)
	hop.leaveBy(link)
	if source, ok := netip.AddrFromSlice(route.Src); ok {
		hop.address = source.Unmap()
	}
	if route.MTU != 0 {
		hop.mtu = min(hop.mtu, route.MTU)
	}
	if link == nil || !neighbour {
		return hop
	}
	via := net.IP(address.AsSlice())
	if route.Gw != nil {
		via = route.Gw
	} else if to, ok := route.Via.(*netlink.Via); ok {
		via = to.Addr
	}
	hop.mac = r.neighbour(route.LinkIndex, via)
	return hop
}

// leaveBy fills in what the interface decides. A VLAN interface is its parent and
// a tag: XDP sends on real interfaces only.
func (h *nextHop) leaveBy(link netlink.Link) {
	if link == nil {
		return
	}
	attrs := link.Attrs()
	h.ifindex, h.mtu = attrs.Index, attrs.MTU
	copy(h.source[:], attrs.HardwareAddr)
	if vlan, ok := link.(*netlink.Vlan); ok {
		h.ifindex, h.vlan = attrs.ParentIndex, uint16(vlan.VlanId)
	}
}

func (r *resolver) link(index int) netlink.Link {
	if r.links == nil {
		r.links = map[int]netlink.Link{}
	}
	if link, known := r.links[index]; known {
		return link
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil
	}
	r.links[index] = link
	return link
}

func (r *resolver) linkByName(name string) netlink.Link {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil
	}
	return link
}

// usable are the neighbour states in which the kernel itself would send.
const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
	netlink.NUD_PERMANENT | netlink.NUD_NOARP

// neighbour returns the MAC address if the kernel has it, and asks the kernel to
// find it and keep it fresh (NTF_EXT_MANAGED, Linux 5.16).
func (r *resolver) neighbour(ifindex int, address net.IP) model.MAC {
	family := netlink.FAMILY_V6
	if address.To4() != nil {
		family = netlink.FAMILY_V4
	}
	var mac model.MAC
	managed := false
	list, err := netlink.NeighList(ifindex, family)
	if err != nil {
		r.log.Warn("read neighbours", "error", err)
	}
	for _, n := range list {
		if n.IP.Equal(address) {
			if n.State&usable != 0 {
				copy(mac[:], n.HardwareAddr)
			}
			managed = n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 || n.FlagsExt&netlink.NTF_EXT_MANAGED != 0
		}
	}
	if !managed {
		err := netlink.NeighSet(&netlink.Neigh{LinkIndex: ifindex, Family: family, IP: address,
			State: netlink.NUD_NONE, FlagsExt: netlink.NTF_EXT_MANAGED})
		if err != nil {
			r.log.Warn("ask for neighbour", "address", address, "interface", ifindex, "error", err)
		}
	}
	return mac
}
