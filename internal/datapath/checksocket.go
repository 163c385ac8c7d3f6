package datapath

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// checkHops limits how many hosts may forward a check: only the backend itself, to a container. A
// host that forwards and lacks the VIP would send the check to a router, which would send it back
// to a director, which would find a healthy backend.
const checkHops = 2

// checkSocket is what makes a socket's packets take a way, except for the number of the way.
type checkSocket struct {
	mark     uint32
	from     netip.Addr // invalid: as the kernel chooses
	mtu      int        // of the way
	six, tcp bool
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
	if s.from.IsValid() {
		errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1), unix.Bind(fd, sockaddrOf(s.from)))
	}
	return errors.Join(errs...)
}

// again gives another way to a socket that was prepared and has been connected since: the longest
// segment is reset when a connection ends, and all else stays (tcp_disconnect in net/ipv4/tcp.c).
func (s checkSocket) again(fd int, way wayNumber) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, int(way))
	if !s.tcp || err != nil {
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
