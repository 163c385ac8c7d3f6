package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// VIPs are on lo with scope host, so that Linux never takes an IPv4 VIP as the source of a
// connection of its own. IPv6 VIPs, whose scope cannot be chosen, are deprecated for the same
// reason. An address carries a number of the program that made it (IFA_PROTO, Linux 5.18), so that
// a restarted agent knows its own addresses and never touches others.
const (
	ifaProto     = 11   // IFA_PROTO (linux/if_addr.h)
	weirProtocol = 0x57 // 'W'
	forever      = ^uint32(0)
)

// loopback returns the index of lo and sets it up: without that, the routes to its addresses are
// missing.
func loopback() (int, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 0, fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return 0, fmt.Errorf("set lo up: %w", err)
	}
	return lo.Attrs().Index, nil
}

// holdVIPs puts the VIPs on lo. A VIP that another program put there remains that program's.
func holdVIPs(vips []netip.Addr) error {
	lo, err := loopback()
	if err != nil {
		return err
	}
	var errs []error
	for _, vip := range vips {
		req := vipRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, lo, vip)
		req.AddData(nl.NewRtAttr(ifaProto, []byte{weirProtocol}))
		if vip.Is6() {
			req.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)))
			lifetime := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Prefered: 0, Valid: forever}}
			req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, lifetime.Serialize()))
		}
		if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("put VIP %s on lo: %w", vip, err))
		}
	}
	return errors.Join(errs...)
}

// releaseVIPs removes the VIPs that weir put on lo, except some.
func releaseVIPs(except []netip.Addr) error {
	held, err := heldVIPs()
	if err != nil {
		return err
	}
	lo, err := loopback()
	if err != nil {
		return err
	}
	var errs []error
	for _, vip := range held {
		if slices.Contains(except, vip) {
			continue
		}
		_, err := vipRequest(unix.RTM_DELADDR, 0, lo, vip).Execute(unix.NETLINK_ROUTE, 0)
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove VIP %s from lo: %w", vip, err))
		}
	}
	return errors.Join(errs...)
}

func vipRequest(command, flags, lo int, vip netip.Addr) *nl.NetlinkRequest {
	family := unix.AF_INET6
	if vip.Is4() {
		family = unix.AF_INET
	}
	req := nl.NewNetlinkRequest(command, flags|unix.NLM_F_ACK)
	msg := nl.NewIfAddrmsg(family)
	msg.Index, msg.Prefixlen, msg.Scope = uint32(lo), uint8(vip.BitLen()), unix.RT_SCOPE_HOST
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, vip.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, vip.AsSlice()))
	return req
}

// onLoopback is an address that lo has.
type onLoopback struct {
	address netip.Addr
	ours    bool // an agent put it there
}

// listLoopback returns all addresses of lo, also those of other programs.
func listLoopback() ([]onLoopback, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var list []onLoopback
	for _, m := range messages {
		if nl.DeserializeIfAddrmsg(m).Index != loopbackIndex {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
		if err != nil {
			return nil, fmt.Errorf("read address: %w", err)
		}
		var a onLoopback
		for _, attr := range attrs {
			switch attr.Attr.Type {
			case unix.IFA_ADDRESS:
				a.address, _ = netip.AddrFromSlice(attr.Value)
			case ifaProto:
				a.ours = attr.Value[0] == weirProtocol
			}
		}
		if a.address.IsValid() {
			list = append(list, a)
		}
	}
	return list, nil
}

// heldVIPs returns the VIPs that weir put on lo, in order.
func heldVIPs() ([]netip.Addr, error) {
	list, err := listLoopback()
	if err != nil {
		return nil, err
	}
	var held []netip.Addr
	for _, a := range list {
		if a.ours {
			held = append(held, a.address)
		}
	}
	return sorted(held), nil
}
