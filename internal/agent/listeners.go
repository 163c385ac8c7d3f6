package agent

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// What sock_diag says of a listening socket besides (linux/inet_diag.h, linux/sock_diag.h):
// attributes behind the answer, of which the drops are asked for.
const (
	diagExtensions   = 2 // where they are in the request: a bit for each attribute, from 1
	diagCookie       = 44
	diagCookieLength = 8
	diagReceiveQueue = 56
	attributeMemory  = 7  // INET_DIAG_SKMEMINFO: 32-bit numbers
	attributeV6Only  = 11 // INET_DIAG_SKV6ONLY, of IPv6 only
	attributeGroup   = 21 // INET_DIAG_CGROUP_ID, since Linux 5.9
	memoryDrops      = 8  // SK_MEMINFO_DROPS: which of the numbers
	listening        = uint32(1 << stateListen)
	unconnected      = uint32(1 << stateClose) // what a UDP socket is in that serves everybody
)

// listener is a socket that serves everybody: a listening one of TCP, or one of UDP.
type listener struct {
	protocol model.Protocol
	cookie   [diagCookieLength]byte // no other socket of this boot has it
	at       netip.AddrPort
	v6only   bool
	waiting  uint32 // of TCP: connections in its accept queue
	// drops is, for TCP, how many segments of connections that are being opened it has
	// dropped, nearly all because its accept queue was full (tcp_listendrop in the kernel);
	// for UDP, how many datagrams, nearly all because its receive buffer was.
	drops uint32
	group uint64 // the number of its cgroup v2; 0: not known
}

// listeners calls found with each listening TCP socket of the namespace.
func (s sockets) listeners(found func(listener)) error {
	return s.serving(model.TCP, unix.IPPROTO_TCP, listening, found)
}

// receivers calls found with each UDP socket of the namespace that is not connected.
func (s sockets) receivers(found func(listener)) error {
	return s.serving(model.UDP, unix.IPPROTO_UDP, unconnected, found)
}

func (s sockets) serving(protocol model.Protocol, number byte, states uint32, found func(listener)) error {
	return s.dump(number, states, 1<<(attributeMemory-1), func(answer []byte) {
		l := listener{
			protocol: protocol, at: diagEnd(answer, diagSource, 0), cookie: [diagCookieLength]byte(answer[diagCookie:]),
			waiting: binary.NativeEndian.Uint32(answer[diagReceiveQueue:]),
		}
		attributes, err := nl.ParseRouteAttr(answer[diagAnswerLength:])
		if err != nil {
			return // the kernel writes what can be read
		}
		for _, a := range attributes {
			switch {
			case a.Attr.Type == attributeMemory && len(a.Value) >= 4*(memoryDrops+1):
				l.drops = binary.NativeEndian.Uint32(a.Value[4*memoryDrops:])
			case a.Attr.Type == attributeV6Only && len(a.Value) > 0:
				l.v6only = a.Value[0] != 0
			case a.Attr.Type == attributeGroup && len(a.Value) >= 8:
				l.group = binary.NativeEndian.Uint64(a.Value)
			}
		}
		found(l)
	})
}

// serves reports whether what begins at a service comes to the socket, if there is no closer one.
func (l listener) serves(s *model.ServiceID) bool {
	return s.Protocol == l.protocol && l.takes(s.VIP, s.Port)
}

// takes reports whether what is sent to an address and one of these ports comes to the socket.
func (l listener) takes(address netip.Addr, ports model.PortRange) bool {
	if !ports.Contains(l.at.Port()) {
		return false
	}
	if at := l.at.Addr(); at.IsUnspecified() {
		return at.Is4() == address.Is4() || at.Is6() && !l.v6only
	}
	return l.at.Addr() == address
}

// families are those that sock_diag is asked for, one after the other.
var families = []byte{unix.AF_INET, unix.AF_INET6}
