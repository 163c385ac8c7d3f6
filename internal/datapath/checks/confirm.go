package checks

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
)

// How often one host is asked whether it still has the MAC address that the kernel has for it, and
// how many hosts are asked in one second.
const (
	confirmEvery = time.Second
	confirmMost  = 50
)

// confirmed is when neighbors were asked.
type confirmed struct {
	at     map[nexthop.Neighbor]time.Time
	second time.Time // in which count neighbors were asked
	count  int
}

// allow says whether a neighbor may be asked now.
func (c *confirmed) allow(n nexthop.Neighbor, now time.Time) bool {
	if now.Sub(c.second) >= time.Second {
		c.second, c.count = now, 0
	}
	if c.count >= confirmMost || now.Sub(c.at[n]) < confirmEvery {
		return false
	}
	if c.at == nil || len(c.at) > 10*confirmMost { // neighbors on a link that is down are asked again and again
		c.at = map[nexthop.Neighbor]time.Time{}
	}
	c.at[n] = now
	c.count++
	return true
}

// Failed asks for the backend of a check whose probe got no answer. The kernel trusts a neighbor's
// MAC address for half a minute or longer, and then asks at that MAC address. If another host has
// taken over a backend's address and not announced it, that host would get nothing until then. The
// kernel takes the answer in like any other, and reports it.
func (c *Ways) Failed(check *model.Check) {
	to := check.To.Addr()
	if check.Way != nil {
		b := &check.Way.Backend
		to = b.TunnelEnd()
		if b.Segment != (model.Segment{}) {
			hop := c.Hops.Resolve(*b, c.Hops.CurrentNames(check.Way.Interfaces))
			switch {
			case b.Segment.IsOverlay() && hop.Outer.VTEP.IsValid():
				to = hop.Outer.VTEP // that is this host's neighbor
			case hop.Via.Ifindex == 0 || c.Hops.RouteTo(to).Via.Ifindex != hop.Via.Ifindex:
				return // the host's routes lead to another network
			}
		}
	}
	way := c.Hops.RouteTo(to)
	if way.Hop.Local || way.Via.Ifindex == 0 || way.Hop.Source.IsZero() || !way.Hop.Address.IsValid() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.confirmed.allow(way.Via, time.Now()) {
		return
	}
	if err := c.confirm(way.Via, way.Hop); err != nil {
		c.Log.Debug("ask for a neighbor", "address", way.Via.Address, "error", err)
	}
}

// confirm asks all hosts on the link. The lock is held.
func (c *Ways) confirm(n nexthop.Neighbor, own nexthop.Hop) error {
	if n.Address.Is6() {
		return solicit(n, own.Source)
	}
	if c.bindings == nil {
		var err error
		if c.bindings, err = openBindings(); err != nil {
			return err
		}
	}
	return c.bindings.query(n, own)
}

// solicit sends a neighbor solicitation (RFC 4861, 4.3).
func solicit(n nexthop.Neighbor, own model.MAC) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return fmt.Errorf("open a socket for NDP: %w", err)
	}
	defer unix.Close(fd)
	for option, value := range map[int]int{unix.IPV6_MULTICAST_HOPS: 255, unix.IPV6_MULTICAST_IF: n.Ifindex} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, option, value); err != nil {
			return fmt.Errorf("set up a socket for NDP: %w", err)
		}
	}
	message := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, n.Address.AsSlice()...) // the kernel fills in the checksum
	message = append(append(message, 1, 1), own[:]...)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: solicitedNode(n.Address).As16(), ZoneId: uint32(n.Ifindex)}); err != nil {
		return fmt.Errorf("send a neighbor solicitation: %w", err)
	}
	return nil
}

// solicitedNode is the group that hosts with an address listen to (RFC 4291, 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	group, bytes := netip.MustParseAddr("ff02::1:ff00:0").As16(), a.As16()
	copy(group[13:], bytes[13:])
	return netip.AddrFrom16(group)
}
