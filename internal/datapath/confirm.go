package datapath

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

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
	at     map[neighbor]time.Time
	second time.Time // in which count neighbors were asked
	count  int
}

// allow says whether a neighbor may be asked now.
func (c *confirmed) allow(n neighbor, now time.Time) bool {
	if now.Sub(c.second) >= time.Second {
		c.second, c.count = now, 0
	}
	if c.count >= confirmMost || now.Sub(c.at[n]) < confirmEvery {
		return false
	}
	if c.at == nil || len(c.at) > 10*confirmMost { // neighbors on a link that is down are asked again and again
		c.at = map[neighbor]time.Time{}
	}
	c.at[n] = now
	c.count++
	return true
}

// Failed asks for the backend of a check whose probe got no answer. The kernel trusts a neighbor's
// MAC address for half a minute or longer, and then asks at that MAC address. If another host has
// taken over a backend's address and not announced it, that host would get nothing until then. The
// kernel takes the answer in like any other, and reports it.
func (c *Checks) Failed(check *model.Check) {
	to := check.To.Addr()
	if check.Way != nil {
		to = check.Way.Backend.TunnelEnd()
	}
	way := c.hops.routeTo(to)
	if way.hop.local || way.via.ifindex == 0 || way.hop.source.IsZero() || !way.hop.address.IsValid() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.confirmed.allow(way.via, time.Now()) {
		return
	}
	if err := c.confirm(way.via, way.hop); err != nil {
		c.log.Debug("ask for a neighbor", "address", way.via.address, "error", err)
	}
}

// confirm asks all hosts on the link. The lock is held.
func (c *Checks) confirm(n neighbor, own nextHop) error {
	if n.address.Is6() {
		return solicit(n, own.source)
	}
	if c.claims == nil {
		var err error
		if c.claims, err = openClaims(); err != nil {
			return err
		}
	}
	return c.claims.ask(n, own)
}

// solicit sends a neighbor solicitation (RFC 4861, 4.3).
func solicit(n neighbor, own model.MAC) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return fmt.Errorf("open a socket for NDP: %w", err)
	}
	defer unix.Close(fd)
	for option, value := range map[int]int{unix.IPV6_MULTICAST_HOPS: 255, unix.IPV6_MULTICAST_IF: n.ifindex} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, option, value); err != nil {
			return fmt.Errorf("set up a socket for NDP: %w", err)
		}
	}
	message := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, n.address.AsSlice()...) // the kernel fills in the checksum
	message = append(append(message, 1, 1), own[:]...)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: solicitedNode(n.address).As16(), ZoneId: uint32(n.ifindex)}); err != nil {
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
