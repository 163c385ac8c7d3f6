package datapath

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
}

const (
	checkPriority   = 1 // of the rule: after the host's own addresses, before rules of others
	checkFilterName = "weir-check"
	checkMTU        = 65535 // ways have smaller MTUs, which their sockets are told
)

// checkNames returns the device's name and the mark, which is also the number of the table.
func checkNames(pin string) (string, uint32) {
	hash := sha256.Sum256([]byte(pin))
	return "weir-" + hex.EncodeToString(hash[:4]), binary.BigEndian.Uint32(hash[4:])>>1 | 1<<30
}

// openCheckDevice makes the device anew: one that a killed process left has that process's program.
func openCheckDevice(pin string, limit uint32) (*checkDevice, error) {
	spec, err := loadCheck()
	if err != nil {
		return nil, fmt.Errorf("read the program of checks: %w", err)
	}
	spec.Maps[checkMapCheckWays].MaxEntries = limit
	d := &checkDevice{}
	if d.names, err = enumNames(spec.Types, "check_verdict"); err != nil {
		return nil, err
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, loadError(err)
	}
	d.program, d.ways, d.verdicts = collection.Programs[checkProgSendCheck], collection.Maps[checkMapCheckWays], collection.Maps[checkMapCheckVerdicts]
	d.name, d.mark = checkNames(pin)
	if err := errors.Join(removeCheckDevice(pin), d.make()); err != nil {
		return nil, errors.Join(err, removeCheckDevice(pin), d.release())
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
	return nil
}

// link makes the device itself: of the kinds that lead nowhere, a kernel without modules is
// likeliest to have veth. The other end of the pair gets nothing.
func (d *checkDevice) link() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = d.name, checkMTU
	ends := netlink.NewVeth(attrs)
	ends.PeerName = d.name + "-x"
	if err := netlink.LinkAdd(ends); err != nil {
		return nil, err
	}
	if _, err := setQuietlyUp(ends.PeerName); err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(d.name)
	if err != nil {
		return nil, err
	}
	// Packets that are sent there must not wait for a neighbor.
	if err := errors.Join(netlink.LinkSetARPOff(link), putFilter(link.Attrs().Index, netlink.HANDLE_MIN_EGRESS, d.program, checkFilterName)); err != nil {
		return nil, err
	}
	return setQuietlyUp(d.name)
}

// setQuietlyUp sets a link up without an address of its own, so that it does not look for routers.
// Where /proc cannot be written it does look for them, but no host hears it.
func setQuietlyUp(name string) (netlink.Link, error) {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/addr_gen_mode", []byte("1"), 0)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	return link, netlink.LinkSetUp(link)
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

// removeCheckDevice removes the device of a datapath, if there is one.
func removeCheckDevice(pin string) error {
	var d checkDevice
	d.name, d.mark = checkNames(pin)
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
	for _, name := range []string{d.name, d.name + "-x"} {
		link := linkByName(name)
		switch {
		case link == nil:
			return "is not there", 0
		case link.Attrs().Flags&net.FlagUp == 0:
			return name + " is down", link.Attrs().Index
		case name == d.name && !hasFilter(link, netlink.HANDLE_MIN_EGRESS, checkFilterName):
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
	return "", index
}

func (d *checkDevice) hasRule(family int) bool {
	rules, err := netlink.RuleList(family)
	return err != nil || slices.ContainsFunc(rules, func(r netlink.Rule) bool {
		return r.Priority == checkPriority && r.Mark == d.mark && r.Table == int(d.mark)
	})
}

// hasRoute asks for the routes of the device's table alone: without a strict check (Linux 4.20) the
// kernel would list all routes of the host every second, and a router may have a million.
func (d *checkDevice) hasRoute(family int) bool {
	strict, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return true
	}
	defer strict.Close()
	if strict.SetStrictCheck(true) != nil {
		return true
	}
	routes, err := strict.RouteListFiltered(family, &netlink.Route{Table: int(d.mark)}, netlink.RT_FILTER_TABLE)
	return len(routes) > 0 || err != nil && !errors.Is(err, unix.ENOENT) // ENOENT: there is no such table
}

// mend makes the device anew, with the program and the ways that it has.
func (d *checkDevice) mend(pin string) error {
	return errors.Join(removeCheckDevice(pin), d.make())
}
