package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// A pod's interface is a veth, whose other end leaves checksums and segmentation to the receiver;
// XDP would forward packets as they are. So packets take a detour: the pod's own routing sends
// those that are not for its sockets into a second veth: one end finishes both, and the director is
// at the other end. Packets that the director sends leave by the pod's interface.
const (
	detourStack    = "to-director" // the end that the stack sends by
	detourDirector = "director"    // the end by which packets come in
)

// The detour's rules are before that of the pod's own addresses, which is otherwise the first:
// what comes to the ports of full NAT is for one of these.
const (
	detourTable = 100
	portRules   = 10  // and those after it
	localRule   = 100 // the rule of the pod's own addresses
	otherRule   = 200 // for other packets
)

// Detour makes the detour, for the director's file. It may exist already.
func (p *Pod) Detour(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the director's file: %w", err)
	}
	c, err := config.Parse(file, text)
	if err != nil {
		return err
	}
	if _, err := netlink.LinkByName(detourDirector); err == nil {
		return nil
	}
	if err := p.detour(c.Director.SNAT.Ports); err != nil {
		if link, found := netlink.LinkByName(detourStack); found == nil {
			err = errors.Join(err, netlink.LinkDel(link)) // so that it is tried again
		}
		return fmt.Errorf("make the detour of packets to the director: %w", err)
	}
	return nil
}

func (p *Pod) detour(ports model.PortRange) error {
	own, err := p.link()
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = detourStack, own.Attrs().MTU
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerMTU = detourDirector, uint32(own.Attrs().MTU)
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make its veth: %w", err)
	}
	// What it leaves to offload are checksums, and so segments: ethtool -K IFACE tx off.
	if err := device.SetEthtool(detourStack, unix.ETHTOOL_STXCSUM, 0); err != nil {
		return fmt.Errorf("switch checksums of its veth: %w", err)
	}
	end, err := netlink.LinkByName(detourDirector)
	if err != nil {
		return fmt.Errorf("look at its veth: %w", err)
	}
	for _, l := range []netlink.Link{pair, end} {
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("set its veth up: %w", err)
		}
	}
	for _, a := range p.Addresses {
		if err := lead(a, own.Attrs().Name, pair.Attrs().Index, end.Attrs().HardwareAddr, ports); err != nil {
			return err
		}
	}
	return nil
}

// link returns the interface that has the pod's first address.
func (p *Pod) link() (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, a := range addresses {
			if is, ok := netip.AddrFromSlice(a.IP); ok && len(p.Addresses) > 0 && is.Unmap() == p.Addresses[0] {
				return l, nil
			}
		}
	}
	return nil, fmt.Errorf("no interface has the pod's address, of %v", p.Addresses)
}

// lead leads packets of one of the pod's addresses' family.
func lead(own netip.Addr, from string, by int, to net.HardwareAddr, ports model.PortRange) error {
	family, hop, protocols := netlink.FAMILY_V4, net.IPv4(169, 254, 100, 1), []int{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP}
	if own.Is6() { // neighbors are found by ICMPv6, which is the kernel's
		family, hop, protocols = netlink.FAMILY_V6, net.ParseIP("fe80::100:1"), protocols[:2]
	}
	neighbor := &netlink.Neigh{LinkIndex: by, Family: family, State: netlink.NUD_PERMANENT, IP: hop, HardwareAddr: to}
	if err := netlink.NeighSet(neighbor); err != nil {
		return fmt.Errorf("set its neighbor: %w", err)
	}
	route := &netlink.Route{Family: family, LinkIndex: by, Gw: hop, Table: detourTable, Flags: int(netlink.FLAG_ONLINK)}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("set its route: %w", err)
	}
	var rules []*netlink.Rule
	add := func(priority, table int, change func(*netlink.Rule)) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table = family, priority, table
		change(r)
		rules = append(rules, r)
	}
	add(localRule, unix.RT_TABLE_LOCAL, func(*netlink.Rule) {})
	for i, protocol := range protocols {
		add(portRules+i, detourTable, func(r *netlink.Rule) {
			r.IifName, r.IPProto = from, protocol
			if protocol != unix.IPPROTO_ICMP {
				r.Dport = netlink.NewRulePortRange(ports.First, ports.Last)
			}
		})
	}
	add(otherRule, detourTable, func(r *netlink.Rule) { r.IifName = from })
	for _, r := range rules {
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule %d: %w", r.Priority, err)
		}
	}
	return removeFirst(family)
}

// removeFirst removes the rule of the own addresses that comes before all others.
func removeFirst(family int) error {
	rules, err := netlink.RuleList(family)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		if r.Table == unix.RT_TABLE_LOCAL && r.Priority != localRule {
			r.Family, r.Priority = family, 0
			if err := netlink.RuleDel(&r); err != nil {
				return fmt.Errorf("remove the first rule: %w", err)
			}
		}
	}
	return nil
}
