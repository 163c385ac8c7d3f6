package test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// tracked is a connection as netfilter knows it: the addresses of its first packet, and those that
// its answers must have.
type tracked struct {
	from, to, answersFrom, answersTo netip.AddrPort
}

func (c tracked) String() string {
	return fmt.Sprintf("%s to %s, answered by %s to %s", c.from, c.to, c.answersFrom, c.answersTo)
}

// conntrack returns what a host's netfilter knows of connections from one of the client's ports.
func conntrack(t *testing.T, h *netlab.Host, six bool, port uint16) (all []tracked) {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if six {
		family = unix.AF_INET6
	}
	var list []*netlink.ConntrackFlow
	if err := h.Do(func() (err error) {
		list, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
		return err
	}); err != nil {
		t.Fatalf("list the connections that %s tracks: %v", h.Name, err)
	}
	at := func(ip net.IP, port uint16) netip.AddrPort {
		address, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(address.Unmap(), port)
	}
	for _, c := range list {
		if c.Forward.Protocol != unix.IPPROTO_TCP || c.Forward.SrcPort != port {
			continue
		}
		all = append(all, tracked{at(c.Forward.SrcIP, c.Forward.SrcPort), at(c.Forward.DstIP, c.Forward.DstPort),
			at(c.Reverse.SrcIP, c.Reverse.SrcPort), at(c.Reverse.DstIP, c.Reverse.DstPort)})
	}
	return all
}

// tracks checks what netfilter knows of an open redirected connection: on the client's host it goes
// to the VIP, and on one backend's host to the backend's own address.
func (l *redirectLab) tracks(t *testing.T, conn net.Conn, s redirectService) {
	t.Helper()
	client := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	six := client.Addr().Is6()
	vip := netip.AddrPortFrom(redirectVIP(s.number, six), uint16(s.port))
	if got, want := conntrack(t, l.client, six, client.Port()), (tracked{client, vip, vip, client}); !slices.Equal(got, []tracked{want}) {
		t.Errorf("the client's host tracks %v, want %v alone", got, want)
	}
	var got, want []tracked
	for i, b := range l.backends {
		backend := netip.AddrPortFrom(lanAddress(backendHost+i, six), uint16(s.port))
		if here := conntrack(t, b, six, client.Port()); len(here) > 0 {
			got, want = append(got, here...), append(want, tracked{client, backend, backend, client})
		}
	}
	if len(got) != 1 || !slices.Equal(got, want) {
		t.Errorf("the backends' hosts track %v, want %v alone", got, want)
	}
}
