package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// What sock_diag is asked, and what it answers (linux/inet_diag.h: inet_diag_req_v2 and
// inet_diag_msg). Only the sockets' addresses are of interest, in network byte order.
const (
	diagRequestLength = 56
	diagStates        = 4 // where the states are in the request
	diagAnswerLength  = 72
	diagPorts         = 4 // where source and destination port are in the answer
	diagSource        = 8
	diagDestination   = 24
	diagState         = 1 // where the state is in the answer
	// Where ports and addresses are in a request for one socket, and where the value that accepts
	// any cookie is (INET_DIAG_NOCOOKIE).
	askedPorts       = 8
	askedSource      = 12
	askedDestination = 28
	askedCookie      = 48
)

// The states of the kernel (net/tcp_states.h) in which a socket has no connection. In all others it
// has one: a connection that is being opened (TCP_NEW_SYN_RECV is a request socket), one that no
// process has open any more, or one in TIME_WAIT.
const (
	stateTimeWait = 6
	stateClose    = 7
	stateListen   = 10
	lastState     = 12
	connected     = uint32((1<<(lastState+1) - 1) &^ (1<<stateClose | 1<<stateListen))
)

// sockets asks a network namespace about its sockets. sock_diag needs no program in
// the kernel and names every socket in some 100 bytes.
type sockets struct{ netlink *nl.NetlinkSocket }

// openSockets asks the namespace of the calling thread.
func openSockets() (sockets, error) {
	s, err := nl.Subscribe(unix.NETLINK_INET_DIAG)
	return newSockets(s, err)
}

// openSocketsIn asks the namespace of that name.
func openSocketsIn(name string) (sockets, error) {
	file, err := os.Open(namespacePath(name))
	if err != nil {
		return sockets{}, err
	}
	defer file.Close()
	s, err := nl.GetNetlinkSocketAt(netns.NsHandle(file.Fd()), netns.None(), unix.NETLINK_INET_DIAG)
	return newSockets(s, err)
}

func newSockets(s *nl.NetlinkSocket, err error) (sockets, error) {
	if err != nil {
		return sockets{}, fmt.Errorf("ask for sockets: %w", err)
	}
	if err := s.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		s.Close()
		return sockets{}, fmt.Errorf("ask for sockets: %w", err)
	}
	return sockets{s}, nil
}

func (s sockets) close() { s.netlink.Close() }

// namespacePath is the path of a namespace that the configuration names.
func namespacePath(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return filepath.Join(namedNamespaces, name)
}

// connections calls found with both ends of each TCP connection of the namespace, of both families;
// IPv4 in IPv6 sockets is IPv4. A connection may be missed when its neighbors in the kernel's table
// go while they are listed.
func (s sockets) connections(found func(local, remote netip.AddrPort)) error {
	return s.dump(unix.IPPROTO_TCP, connected, 0, func(answer []byte) {
		found(diagEnd(answer, diagSource, 0), diagEnd(answer, diagDestination, 1))
	})
}

// hasConnection reports whether a socket of the namespace has a connection with these ends. A
// socket in TIME_WAIT no longer has one.
func (s sockets) hasConnection(local, remote netip.AddrPort) (bool, error) {
	family := byte(unix.AF_INET)
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	request, text := s.request(family, unix.IPPROTO_TCP, 0)
	binary.BigEndian.PutUint16(text[askedPorts:], local.Port())
	binary.BigEndian.PutUint16(text[askedPorts+2:], remote.Port())
	copy(text[askedSource:], local.Addr().AsSlice())
	copy(text[askedDestination:], remote.Addr().AsSlice())
	binary.NativeEndian.PutUint64(text[askedCookie:], math.MaxUint64)
	binary.NativeEndian.PutUint32(text[diagStates:], connected)
	request.AddRawData(text)
	found := false
	err := request.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(answer []byte) bool {
		// If no socket has these ends, the kernel answers with one that listens there.
		if len(answer) >= diagAnswerLength {
			state := answer[diagState]
			found = found || state != stateListen && state != stateClose && state != stateTimeWait
		}
		return true
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the TCP socket of %v to %v: %w", local, remote, err)
	}
	return found, nil
}

// request begins a request for the sockets of a family and a protocol.
func (s sockets) request(family, protocol byte, flags int) (*nl.NetlinkRequest, []byte) {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, flags)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: s.netlink, Seq: request.Seq}}
	text := make([]byte, diagRequestLength)
	text[0], text[1] = family, protocol
	return request, text
}

// dump calls found with what the kernel says of each socket of a protocol in these states, followed
// by these attributes.
func (s sockets) dump(protocol byte, states uint32, attributes byte, found func(answer []byte)) error {
	name := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[protocol]
	for _, family := range families {
		request, text := s.request(family, protocol, unix.NLM_F_DUMP)
		text[diagExtensions] = attributes
		binary.NativeEndian.PutUint32(text[diagStates:], states)
		request.AddRawData(text)
		err := request.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(answer []byte) bool {
			if len(answer) >= diagAnswerLength {
				found(answer)
			}
			return true
		})
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("list %s sockets: the kernel has no %s_diag (CONFIG_INET_%s_DIAG): %w", strings.ToUpper(name), name, strings.ToUpper(name), err)
		}
		if err != nil {
			return fmt.Errorf("list %s sockets: %w", strings.ToUpper(name), err)
		}
	}
	return nil
}

// diagEnd returns one end of a connection.
func diagEnd(answer []byte, at, port int) netip.AddrPort {
	address := netip.AddrFrom4([4]byte(answer[at:]))
	if answer[0] == unix.AF_INET6 {
		address = netip.AddrFrom16([16]byte(answer[at:])).Unmap()
	}
	return netip.AddrPortFrom(address, binary.BigEndian.Uint16(answer[diagPorts+2*port:]))
}

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
	return s.Protocol == l.protocol && l.receives(s.VIP, s.Port)
}

// receives reports whether packets for an address and one of these ports come to the socket.
func (l listener) receives(address netip.Addr, ports model.PortRange) bool {
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
