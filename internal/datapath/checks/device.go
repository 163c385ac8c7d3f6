package checks

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// checkDevice is the device by which health checks leave the host's own routes. It leads nowhere,
// and its program gives their packets another route. Only a rule for packets with the mark leads
// there, because the VIP may be in one of this host's networks. Its names and numbers are the
// datapath's own, because a host may have several datapaths.
type checkDevice struct {
	name     string
	mark     uint32
	program  *ebpf.Program
	ways     *ebpf.Map
	verdicts *ebpf.Map
	names    []string // of the verdicts
	inside   bool     // sockets have addresses that say in which tenant's network they are
}

const (
	checkPriority = 1     // of the rule: after the host's own addresses, before rules of others
	checkMTU      = 65535 // ways have smaller MTUs, which their sockets are told
)

var checkFilter = device.Filter{Name: "weir-check", Parent: netlink.HANDLE_MIN_EGRESS}

// Names returns the device's name and the mark, which is also the number of the table.
func Names(pin string) (string, uint32) {
	hash := sha256.Sum256([]byte(pin))
	return device.ChecksPrefix + hex.EncodeToString(hash[:4]), binary.BigEndian.Uint32(hash[4:])>>1 | 1<<30
}

// openCheckDevice makes the device anew: one that a killed process left has that process's program.
func openCheckDevice(pin string, limit uint32) (*checkDevice, error) {
	spec, err := loadCheck()
	if err != nil {
		return nil, fmt.Errorf("read the program of checks: %w", err)
	}
	spec.Maps[checkMapCheckWays].MaxEntries = limit
	d := &checkDevice{}
	if d.names, err = bpfload.EnumNames(spec.Types, "check_verdict", ""); err != nil {
		return nil, err
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, bpfload.Error(err)
	}
	d.program, d.ways, d.verdicts = collection.Programs[checkProgSendCheck], collection.Maps[checkMapCheckWays], collection.Maps[checkMapCheckVerdicts]
	d.name, d.mark = Names(pin)
	if err := errors.Join(RemoveDevice(pin), d.make()); err != nil {
		return nil, errors.Join(err, RemoveDevice(pin), d.release())
	}
	return d, nil
}

// make makes the device, and then the rules and routes that lead there.
func (d *checkDevice) make() error {
	link, err := d.link()
	if err != nil {
		return fmt.Errorf("device %s: %w", d.name, err)
	}
	for _, family := range d.families() {
		if err := netlink.RouteAdd(d.route(family, link.Attrs().Index)); err != nil {
			return fmt.Errorf("add route of checks: %w", err)
		}
		if err := netlink.RuleAdd(d.rule(family)); err != nil {
			return fmt.Errorf("add rule for checks: %w", err)
		}
	}
	if d.inside {
		return d.addInside(link.Attrs().Index)
	}
	return nil
}

// The addresses of sockets whose packets are for tenants' networks: CHECK_ADDRESS4 and CHECK_ADDRESS6 in
// bpf/abi/vtep_types.h, with the segment in the other bits. Kinds of segments begin with 1.
var (
	checkAddresses4 = []string{"241.0.0.0/8", "242.0.0.0/7"}
	checkAddresses6 = netip.MustParsePrefix("fd77:6569:7200::/96")
)

// checkAddress is the address of sockets whose packets are for a segment.
func checkAddress(segment model.Segment, six bool) netip.Addr {
	key := segment.Key()
	if !six {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0xf0000000|key)))
	}
	a := checkAddresses6.Addr().As16()
	binary.BigEndian.PutUint32(a[12:], key)
	return netip.AddrFrom16(a)
}

// standIn is the address with this number of those that stand for others: CHECK_TARGET4 and CHECK_TARGET6 in
// bpf/abi/vtep_types.h. Only the rule for checks leads to them.
func standIn(number uint32, six bool) netip.Addr {
	if !six {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0xf4000000|number&0xffffff)))
	}
	a := checkAddresses6.Addr().As16()
	a[5] = 1
	binary.BigEndian.PutUint32(a[12:], number)
	return netip.AddrFrom16(a)
}

// haveInside makes this host have the addresses of sockets whose packets are for tenants' networks.
func (d *checkDevice) haveInside() error {
	if d.inside {
		return nil
	}
	link, err := netlink.LinkByName(d.name)
	if err != nil {
		return fmt.Errorf("device %s: %w", d.name, err)
	}
	if err := d.addInside(link.Attrs().Index); err != nil {
		return err
	}
	d.inside = true
	return nil
}

// insideRoutes are the routes that make the addresses this host's own. They go with the device.
func (d *checkDevice) insideRoutes(index int) (routes []*netlink.Route) {
	for _, text := range append(slices.Clone(checkAddresses4), checkAddresses6.String()) {
		_, prefix, err := net.ParseCIDR(text)
		if err != nil {
			panic(err)
		}
		family := netlink.FAMILY_V4
		if prefix.IP.To4() == nil {
			family = netlink.FAMILY_V6
		}
		if slices.Contains(d.families(), family) {
			routes = append(routes, &netlink.Route{Family: family, Dst: prefix, LinkIndex: index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST})
		}
	}
	return routes
}

func (d *checkDevice) addInside(index int) error {
	for _, route := range d.insideRoutes(index) {
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("make %v this host's own, for health checks in tenants' networks: %w", route.Dst, err)
		}
	}
	return nil
}

// link makes the device itself: of the kinds that lead nowhere, a kernel without modules is
// likeliest to have veth. The other end of the pair gets nothing.
func (d *checkDevice) link() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = d.name, checkMTU
	ends := netlink.NewVeth(attrs)
	ends.PeerName = d.name + device.OtherEnd
	if err := netlink.LinkAdd(ends); err != nil {
		return nil, err
	}
	if _, err := device.SetQuietlyUp(ends.PeerName); err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(d.name)
	if err != nil {
		return nil, err
	}
	// Packets that are sent there must not wait for a neighbor. Each comes alone: the segments of a larger one would
	// have headers alike, and so a wrong UDP checksum, or none, which hosts drop over IPv6 (RFC 8200, 8.1).
	if err := errors.Join(netlink.LinkSetARPOff(link), netlink.LinkSetGSOMaxSegs(link, 1), checkFilter.Put(link.Attrs().Index, d.program.FD())); err != nil {
		return nil, err
	}
	return device.SetQuietlyUp(d.name)
}

// families are the address families that the host has.
func (d *checkDevice) families() []int {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + d.name + "/disable_ipv6")
	if err != nil || string(off) != "0\n" {
		return []int{netlink.FAMILY_V4}
	}
	return []int{netlink.FAMILY_V4, netlink.FAMILY_V6}
}

func (d *checkDevice) route(family, index int) *netlink.Route {
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if family == netlink.FAMILY_V6 {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{Family: family, Dst: all, LinkIndex: index, Table: int(d.mark), Scope: netlink.SCOPE_LINK}
}

func (d *checkDevice) rule(family int) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Mark, rule.Table, rule.Priority = family, d.mark, int(d.mark), checkPriority
	return rule
}

func (d *checkDevice) release() error {
	d.ways.Close()
	d.verdicts.Close()
	return d.program.Close()
}

// close removes the device, with everything that leads there.
func (d *checkDevice) close() error {
	link, err := netlink.LinkByName(d.name)
	if err == nil {
		err = d.remove(link)
	}
	return errors.Join(err, d.release())
}

// RemoveDevice removes the device of a datapath, if there is one.
func RemoveDevice(pin string) error {
	var d checkDevice
	d.name, d.mark = Names(pin)
	link, err := netlink.LinkByName(d.name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return d.remove(nil)
	}
	if err != nil {
		return fmt.Errorf("look for device %s: %w", d.name, err)
	}
	return d.remove(link)
}

// remove takes the rules out first: packets without a rule take the host's own routes. Routes go
// with their device.
func (d *checkDevice) remove(link netlink.Link) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		err := netlink.RuleDel(d.rule(family))
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) {
			errs = append(errs, fmt.Errorf("remove rule for checks: %w", err))
		}
	}
	if link != nil {
		if err := netlink.LinkDel(link); err != nil {
			errs = append(errs, fmt.Errorf("remove device %s: %w", d.name, err))
		}
	}
	return errors.Join(errs...)
}

// problem says which part of the device is gone: tools that manage all rules and routes of a host
// (systemd-networkd, ip rule flush) clear these, too.
func (d *checkDevice) problem() (text string, index int) {
	for _, name := range []string{d.name, d.name + device.OtherEnd} {
		link := device.ByName(name)
		switch {
		case link == nil:
			return "is not there", 0
		case link.Attrs().Flags&net.FlagUp == 0:
			return name + " is down", link.Attrs().Index
		case name == d.name && !checkFilter.IsOn(link.Attrs().Index):
			return "has not the program that gives probes their way", link.Attrs().Index
		}
		index = link.Attrs().Index
	}
	for _, family := range d.families() {
		if !d.hasRule(family) {
			return "has not the rule that leads probes there", 0
		}
		if !d.hasRoute(family) {
			return "has not the route that leads probes there", 0
		}
	}
	if link := device.ByName(d.name); d.inside && link != nil && !d.hasInside(link.Attrs().Index) {
		return "has not the routes by which probes in tenants' networks get their answers", 0
	}
	return "", index
}

// hasInside says whether the addresses of sockets whose packets are for tenants' networks are this device's.
// Another datapath of this host may have taken them along.
func (d *checkDevice) hasInside(index int) bool {
	for _, want := range d.insideRoutes(index) {
		is := func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == want.Dst.String() }
		if !listed(want.Family, &netlink.Route{Table: want.Table, LinkIndex: index}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF, is) {
			return false
		}
	}
	return true
}

func (d *checkDevice) hasRule(family int) bool {
	rules, err := netlink.RuleList(family)
	return err != nil || slices.ContainsFunc(rules, func(r netlink.Rule) bool {
		return r.Priority == checkPriority && r.Mark == d.mark && r.Table == int(d.mark)
	})
}

func (d *checkDevice) hasRoute(family int) bool {
	return listed(family, &netlink.Route{Table: int(d.mark)}, netlink.RT_FILTER_TABLE, func(netlink.Route) bool { return true })
}

// listed says whether there is such a route, or whether that cannot be known. It asks for those of one table alone:
// without a strict check (Linux 4.20) the kernel would list all routes of the host every second, and a router may have
// a million.
func listed(family int, routes *netlink.Route, filter uint64, is func(netlink.Route) bool) bool {
	strict, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return true
	}
	defer strict.Close()
	if strict.SetStrictCheck(true) != nil {
		return true
	}
	found, err := strict.RouteListFiltered(family, routes, filter)
	return slices.ContainsFunc(found, is) || err != nil && !errors.Is(err, unix.ENOENT) // ENOENT: there is no such table
}

// mend makes the device anew, with the program and the ways that it has.
func (d *checkDevice) mend(pin string) error {
	return errors.Join(RemoveDevice(pin), d.make())
}

// checkHops limits how many hosts may forward a check: only the backend itself, to a container. A
// host that forwards and lacks the VIP would send the check to a router, which would send it back
// to a director, which would find a healthy backend.
const checkHops = 2

// checkSocket is what makes a socket's packets take a way, except for the number of the way.
type checkSocket struct {
	mark uint32
	from netip.Addr // invalid: as the kernel chooses
	mtu  int        // of the way
	six  bool
	over model.Protocol // zero: ICMP
}

// wayNumber is the number of a way.
type wayNumber uint32

// prepare is called with a socket before it is connected. It binds the socket to an address only:
// the port is chosen on connect, when the destination is known, so that there are enough for each.
func (s checkSocket) prepare(fd int, way wayNumber) error {
	hops, at := unix.IP_TTL, unix.IPPROTO_IP
	if s.six {
		hops, at = unix.IPV6_UNICAST_HOPS, unix.IPPROTO_IPV6
	}
	errs := []error{
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(s.mark)),
		unix.SetsockoptInt(fd, at, hops, checkHops),
		s.again(fd, way),
	}
	if s.from.IsValid() && s.over != 0 && s.over != model.SCTP { // a raw socket has no port
		errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
	}
	if s.from.IsValid() {
		if checkAddresses6.Contains(s.from) { // IPv6 lets sockets have no other addresses than those of interfaces
			errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1))
		}
		errs = append(errs, unix.Bind(fd, sockaddrOf(s.from)))
	}
	return errors.Join(errs...)
}

// again gives another way to a socket that was prepared and has been connected since: the longest
// segment is reset when a connection ends, and all else stays (tcp_disconnect in net/ipv4/tcp.c).
func (s checkSocket) again(fd int, way wayNumber) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, int(way))
	if s.over != model.TCP || err != nil {
		return err
	}
	header := 40 // IPv4 and TCP
	if s.six {
		header = 60
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, min(s.mtu-header, mostSegment))
}

// mostSegment is the largest value that TCP_MAXSEG takes (MAX_TCP_WINDOW in net/tcp.h).
const mostSegment = 32767

func sockaddrOf(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}
