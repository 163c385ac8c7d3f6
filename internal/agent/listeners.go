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
	attributeMemory  = 7  // INET_DIAG_SKMEMINFO: 32-bit numbers
	attributeV6Only  = 11 // INET_DIAG_SKV6ONLY, of IPv6 only
	memoryDrops      = 8  // SK_MEMINFO_DROPS: which of the numbers
	listening        = uint32(1 << stateListen)
)

// listener is a listening TCP socket.
type listener struct {
	cookie [diagCookieLength]byte // no other socket of this boot has it
	at     netip.AddrPort
	v6only bool
	// drops is how many segments of connections that are being opened it has dropped, nearly
	// all because its accept queue was full (tcp_listendrop in the kernel).
	drops uint32
}

// listeners calls found with each listening TCP socket of the namespace.
func (s sockets) listeners(found func(listener)) error {
	return s.dump(listening, 1<<(attributeMemory-1), func(answer []byte) {
		l := listener{at: diagEnd(answer, diagSource, 0), cookie: [diagCookieLength]byte(answer[diagCookie:])}
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
			}
		}
		found(l)
	})
}

// serves reports whether connections to a service come to the socket, if there is no closer one.
func (l listener) serves(s *model.ServiceID) bool {
	if s.Protocol != model.TCP || !s.Port.Contains(l.at.Port()) {
		return false
	}
	if at := l.at.Addr(); at.IsUnspecified() {
		return at.Is4() == s.VIP.Is4() || at.Is6() && !l.v6only
	}
	return l.at.Addr() == s.VIP
}

// families are those that sock_diag is asked for, one after the other.
var families = []byte{unix.AF_INET, unix.AF_INET6}
