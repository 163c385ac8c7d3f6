package datapath

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// checkHops is how many hosts may forward a check: the backend's own, to a container. A
// host that lacks the VIP and forwards would send it to a router, and that one back to a
// director, which would find a backend that is well.
const checkHops = 2

// checkSocket is what makes a socket's packets take a way.
type checkSocket struct {
	mark, priority uint32
	from           netip.Addr // invalid: as the kernel chooses
	mtu            int        // of the way
	six, tcp       bool
}

// prepare is called with a socket before it is connected. It is bound to an address, and
// its port is chosen when it is known to whom it connects: there are enough for each.
func (s *checkSocket) prepare(fd int) error {
	hops, at := unix.IP_TTL, unix.IPPROTO_IP
	header := 40 // IPv4 and TCP
	if s.six {
		hops, at, header = unix.IPV6_UNICAST_HOPS, unix.IPPROTO_IPV6, 60
	}
	errs := []error{
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(s.mark)),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, int(s.priority)),
		unix.SetsockoptInt(fd, at, hops, checkHops),
	}
	if s.tcp {
		errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, min(s.mtu-header, mostSegment)))
	}
	if s.from.IsValid() {
		errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1), unix.Bind(fd, sockaddrOf(s.from)))
	}
	return errors.Join(errs...)
}

// mostSegment is the longest that TCP_MAXSEG takes (MAX_TCP_WINDOW in net/tcp.h).
const mostSegment = 32767

func sockaddrOf(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}
