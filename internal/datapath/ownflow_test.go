package datapath

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// testOwnFlows: what a NAT backend sends to a program of the director's host is a reply to a
// client, and its source becomes the VIP, unless that program called the backend itself, as
// health checks do.
func testOwnFlows(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isPlainNAT)
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			own, port := call(t, s.protocol, s.backendEnd())
			to := func(port uint16, payload int) []packet.Header {
				return []packet.Header{ip(s.backendEnd().address, own), l4(s.protocol, backendPort, port), packet.Zeros(payload)}
			}
			rows := []row{
				s.pass("to who called the backend", to(port, 10)...),
				s.unrouted("to nobody who did", nil, to(port^1, 10)),
			}
			for _, piece := range pieces(uint32(i), to(port, 600)...) {
				rows = append(rows, row{name: "fragment", in: piece}.passed(abi.ReasonPASS_NO_SERVICE))
			}
			d.check(t, rows)
		})
	}
}

// call begins a flow of this host's to a backend, and returns its end here.
func call(t *testing.T, protocol model.Protocol, to end) (netip.Addr, uint16) {
	t.Helper()
	must(t, netlink.RouteReplace(&netlink.Route{LinkIndex: wire(t).Attrs().Index, Scope: netlink.SCOPE_LINK,
		Dst: &net.IPNet{IP: to.address.AsSlice(), Mask: net.CIDRMask(to.address.BitLen(), to.address.BitLen())}}))
	addNeighbor(t, to.address)
	kind := unix.SOCK_STREAM
	if protocol.Datagrams() { // checks of SCTP hold a UDP socket
		kind = unix.SOCK_DGRAM
	}
	family, peer := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.address.As16(), Port: int(to.port)})
	if to.address.Is4() {
		family, peer = unix.AF_INET, &unix.SockaddrInet4{Addr: to.address.As4(), Port: int(to.port)}
	}
	socket, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(socket) })
	// Nobody answers: TCP's stays as it is when the SYN-ACK comes.
	if err := unix.Connect(socket, peer); err != nil && err != unix.EINPROGRESS {
		t.Fatalf("connect to %s: %v", to.address, err)
	}
	here, err := unix.Getsockname(socket)
	must(t, err)
	if four, is := here.(*unix.SockaddrInet4); is {
		return netip.AddrFrom4(four.Addr), uint16(four.Port)
	}
	six := here.(*unix.SockaddrInet6)
	return netip.AddrFrom16(six.Addr), uint16(six.Port)
}
