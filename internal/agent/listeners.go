package agent

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// More fields that sock_diag gives for a listening socket (linux/inet_diag.h,
// linux/sock_diag.h). Attributes follow the answer: the agent asks for the one with the drops.
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
	unconnected      = uint32(1 << stateClose) // the state of a UDP socket that serves all clients
)

// listener is a socket that serves all clients: a listening TCP socket, or a UDP socket.
type listener struct {
	protocol model.Protocol
	cookie   [diagCookieLength]byte // no other socket of this boot has it
	at       netip.AddrPort
	v6only   bool
	waiting  uint32 // of TCP: connections in its accept queue
	// drops is, for TCP, how many segments of connections that are being opened the socket has
	// dropped, nearly all because its accept queue was full (tcp_listendrop in the kernel). For
	// UDP, it is how many datagrams it has dropped, nearly all because its receive buffer was full.
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
			return // what the kernel writes can be read
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

// serves reports whether new connections or datagrams of a service come to the socket, if no socket
// matches more closely.
func (l listener) serves(s *model.ServiceID) bool {
	return s.Protocol == l.protocol && l.takes(s.VIP, s.Port)
}

// takes reports whether packets for an address and one of these ports come to the socket.
func (l listener) takes(address netip.Addr, ports model.PortRange) bool {
	if !ports.Contains(l.at.Port()) {
		return false
	}
	if at := l.at.Addr(); at.IsUnspecified() {
		return at.Is4() == address.Is4() || at.Is6() && !l.v6only
	}
	return l.at.Addr() == address
}

// families are the address families that sock_diag is asked for, one after the other.
var families = []byte{unix.AF_INET, unix.AF_INET6}
