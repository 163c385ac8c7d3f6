package neighbor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// link is the state of an interface at a moment.
type link struct {
	index    int
	address  mac
	segment  model.Segment  // whose VIPs are on it
	tags     []uint16       // of frames on it, the outer one first; none: as on a segment's VLAN interface
	all      bool           // all of the segment's VIPs are on it
	program  netlink.Link   // by which its packets come to the director's program; nil: not known
	prefixes []netip.Prefix // else: of the networks that are on it
	problem  string         // why nothing is answered there; empty: it can be
}

// look asks the kernel for the state of an interface.
func look(c *model.NeighborInterface) link {
	found, err := netlink.LinkByName(c.Name)
	if err != nil {
		return link{problem: problemOf(err)}
	}
	a := found.Attrs()
	l := link{index: a.Index, segment: c.Segment, prefixes: c.Prefixes}
	program := found // has the program, if all is well
	switch {
	case len(a.HardwareAddr) != len(l.address):
		l.problem = "it has no Ethernet address"
	case a.Flags&net.FlagUp == 0 || a.Flags&net.FlagRunning == 0:
		l.problem = "it is down, or has no carrier"
	default:
		l.address = mac(a.HardwareAddr)
	}
	if l.segment != (model.Segment{}) && l.problem == "" {
		program, l.tags, l.problem = below(found, l.segment)
	}
	l.all = len(l.tags) > 0 && len(l.prefixes) == 0 // the trunk's own addresses are in no segment
	if len(l.prefixes) == 0 && !l.all && l.problem == "" {
		l.prefixes, err = networksOf(found)
		switch {
		case err != nil:
			l.problem = problemOf(err)
		case len(l.prefixes) == 0 && l.segment != (model.Segment{}):
			l.all = true
		case len(l.prefixes) == 0:
			l.problem = "it has no address in a network, and director.neighbor names no prefixes for it"
		}
	}
	l.program = program
	if l.problem == "" && !attached(program) {
		l.problem = notAttached
	}
	return l
}

func attached(l netlink.Link) bool { return l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached }

// below returns the interface by which a segment's packets come to the director's program, and the
// tags of frames on the given one: an interface without a VLAN of its own, or with the program, is a
// trunk, on which frames have all of them; on the host's VLAN interface for the segment they have
// none.
func below(l netlink.Link, segment model.Segment) (program netlink.Link, tags []uint16, problem string) {
	program = l
	var of []uint16
	for {
		vlan, is := program.(*netlink.Vlan)
		if !is || attached(program) {
			break
		}
		of = append([]uint16{uint16(vlan.VlanId)}, of...)
		parent, err := netlink.LinkByIndex(vlan.ParentIndex)
		if err != nil {
			return l, nil, fmt.Sprintf("the interface below it is not here: %v", err)
		}
		program = parent
	}
	want := tagsOf(segment)
	switch {
	case len(of) == 0:
		return program, want, ""
	case !slices.Equal(of, want):
		return l, nil, fmt.Sprintf("its packets are in VLAN %s, not in %s", strings.Trim(strings.ReplaceAll(fmt.Sprint(of), " ", "."), "[]"), segment)
	}
	return program, nil, ""
}

// tagsOf returns the VLAN IDs of a segment's tags, the outer one first.
func tagsOf(s model.Segment) []uint16 {
	if outer := uint16(s.ID >> 12); outer != 0 {
		return []uint16{outer, uint16(s.ID & vlanID)}
	}
	return []uint16{uint16(s.ID & vlanID)}
}

// notAttached is a problem that every interface has before a director has started.
const notAttached = "no program is attached to it: restart weir run"

// Examine returns which VIPs a running director with these interfaces could answer for on one, or why
// none. No prefixes and no problem: all of the segment's.
func Examine(c *model.NeighborInterface, interfaces []string) (prefixes []netip.Prefix, problem string) {
	l := look(c)
	if l.problem == notAttached {
		l.problem = ""
	}
	if program := l.program; l.problem == "" && !slices.ContainsFunc(interfaces, func(name string) bool {
		one, err := netlink.LinkByName(name) // which also knows other names
		return err == nil && one.Attrs().Index == program.Attrs().Index
	}) {
		l.problem = fmt.Sprintf("its packets come by %s, which is none of director.interfaces", program.Attrs().Name)
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
func (l *link) has(vip model.VIP) bool {
	return l.segment == vip.Segment && (l.all || slices.ContainsFunc(l.prefixes, func(p netip.Prefix) bool { return p.Contains(vip.Address) }))
}

// same reports whether there is nothing new to tell hosts and switches on the link.
func (l *link) same(o *link) bool {
	return l.index == o.index && l.address == o.address && l.problem == o.problem && slices.Equal(l.tags, o.tags)
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
