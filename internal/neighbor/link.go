package neighbor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// link is the state of an interface at a moment.
type link struct {
	index    int
	address  mac
	prefixes []netip.Prefix // of the networks that are on it
	problem  string         // why nothing is answered there; empty: it can be
}

// look asks the kernel for the state of an interface.
func look(c *model.NeighborInterface) link {
	found, err := netlink.LinkByName(c.Name)
	if err != nil {
		return link{problem: problemOf(err)}
	}
	a := found.Attrs()
	l := link{index: a.Index, prefixes: c.Prefixes}
	switch {
	case len(a.HardwareAddr) != len(l.address):
		l.problem = "it has no Ethernet address"
	case a.Flags&net.FlagUp == 0 || a.Flags&net.FlagRunning == 0:
		l.problem = "it is down, or has no carrier"
	default:
		l.address = mac(a.HardwareAddr)
	}
	if len(l.prefixes) == 0 && l.problem == "" {
		l.prefixes, err = networksOf(found)
		switch {
		case err != nil:
			l.problem = problemOf(err)
		case len(l.prefixes) == 0:
			l.problem = "it has no address in a network, and director.neighbor names no prefixes for it"
		}
	}
	if l.problem == "" && (a.Xdp == nil || !a.Xdp.Attached) {
		l.problem = notAttached
	}
	return l
}

// notAttached is a problem that every interface has before a director has started.
const notAttached = "no program is attached to it: restart weir run"

// Examine returns which VIPs a running director could answer for on an interface, or why none.
func Examine(c *model.NeighborInterface) (prefixes []netip.Prefix, problem string) {
	l := look(c)
	if l.problem == notAttached {
		l.problem = ""
	}
	return l.prefixes, l.problem
}

func problemOf(err error) string {
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return "there is no such interface"
	}
	return err.Error()
}

// networksOf returns the networks of an interface's addresses.
func networksOf(l netlink.Link) ([]netip.Prefix, error) {
	addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list its addresses: %w", err)
	}
	var networks []netip.Prefix
	for _, a := range addresses {
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		ip = ip.Unmap()
		if !ok || ip.IsLinkLocalUnicast() || bits >= ip.BitLen() {
			continue
		}
		if network, err := ip.Prefix(bits); err == nil {
			networks = append(networks, network)
		}
	}
	return networks, nil
}

// has reports whether hosts on the link look for an address there.
func (l *link) has(vip netip.Addr) bool {
	return slices.ContainsFunc(l.prefixes, func(p netip.Prefix) bool { return p.Contains(vip) })
}

// same reports whether there is nothing new to tell hosts and switches on the link.
func (l *link) same(o *link) bool {
	return l.index == o.index && l.address == o.address && l.problem == o.problem
}

// watchLinks puts an element into changed when something about interfaces or their addresses
// changes, until done is closed.
func watchLinks(changed chan<- struct{}, done <-chan struct{}) error {
	links, addresses := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	if err := netlink.LinkSubscribe(links, done); err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	go pass(links, changed)
	if err := netlink.AddrSubscribe(addresses, done); err != nil {
		return fmt.Errorf("watch addresses of interfaces: %w", err)
	}
	go pass(addresses, changed)
	return nil
}

func pass[T any](updates <-chan T, changed chan<- struct{}) {
	for range updates {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}
