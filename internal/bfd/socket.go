package bfd

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ports of control packets (RFC 5881 4, RFC 5883 5).
const (
	singleHopPort = 3784
	multihopPort  = 4784
	firstSource   = 49152
	lastSource    = 65535
)

// gtsm is the TTL of packets that no router has forwarded (RFC 5082): all packets are sent with it,
// and over one hop only packets with it are taken.
const gtsm = 255

// kind is what a socket for receiving is for.
type kind struct {
	six, multihop bool
}

// place is where packets of a kind are received. A director whose sessions all name their own end,
// or are all with link-local neighbors, takes only these of the host's ports: another director
// beside it can have sessions, too.
type place struct {
	kind
	local  netip.Addr // the destination of the packets; zero: any
	device string     // the interface by which they come in; empty: any
	vrf    string     // the VRF in which they come in, by its device; empty: none
	index  int        // of that device: one that is made anew is another one
	// shared says that weir's own sockets of the kind may have the port at the same address: those in
	// VRFs, and that in none.
	shared bool
}

// text is the place's name in errors.
func (p place) text() string {
	switch {
	case p.device != "" || p.vrf != "":
		return fmt.Sprintf("UDP port %d on %s", p.port(), cmp.Or(p.device, p.vrf))
	case p.local.IsValid():
		return fmt.Sprintf("UDP port %d of %s", p.port(), p.local)
	}
	return fmt.Sprintf("UDP port %d", p.port())
}

func kindOf(neighbor netip.Addr, multihop bool) kind { return kind{neighbor.Is6(), multihop} }

func (k kind) family() int {
	if k.six {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (k kind) port() int { return int(Port(k.multihop)) }

// Port returns the UDP port of packets over one hop, or over several.
func Port(multihop bool) uint16 {
	if multihop {
		return multihopPort
	}
	return singleHopPort
}

// sockaddr returns an address to bind to, or to send to; the zero address is any. Zone is the
// interface of a link-local one.
func (k kind) sockaddr(a netip.Addr, zone, port int) unix.Sockaddr {
	if k.six {
		sa := &unix.SockaddrInet6{Port: port, ZoneId: uint32(zone)}
		if a.IsValid() {
			sa.Addr = a.As16()
		}
		return sa
	}
	sa := &unix.SockaddrInet4{Port: port}
	if a.IsValid() {
		sa.Addr = a.As4()
	}
	return sa
}

// option is a socket option with a number as its value.
type option struct{ level, name, value int }

func open(k kind, options ...option) (fd int, err error) {
	fd, err = unix.Socket(k.family(), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("set socket option %d/%d: %w", o.level, o.name, err)
		}
	}
	return fd, nil
}

// receiver is a socket for packets of one kind from any host.
type receiver struct {
	place
	fd      int
	file    *os.File // of fd, for the runtime to wait for it
	ready   chan<- struct{}
	message unix.Msghdr
	vector  unix.Iovec
	from    unix.RawSockaddrInet6 // the larger of the two
	packet  [maxPacket + 1]byte
	control [128]byte
}

// arrival is a packet as it came. Its payload is valid until the next packet is read.
type arrival struct {
	payload []byte
	from    netip.Addr
	to      netip.Addr // its destination; zero: not known
	index   int        // of the interface that it came in by; 0: not known
	ttl     int
}

// openReceiver opens a receiver, which puts an element into ready whenever a packet comes.
func openReceiver(p place, ready chan<- struct{}) (*receiver, error) {
	options := []option{{unix.IPPROTO_IP, unix.IP_RECVTTL, 1}, {unix.IPPROTO_IP, unix.IP_PKTINFO, 1}}
	if p.six {
		options = []option{{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1}, {unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1}}
	}
	// The address may come to this host later.
	options = append(options, option{unix.IPPROTO_IP, unix.IP_FREEBIND, 1})
	if p.shared {
		options = append(options, option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
	}
	fd, err := open(p.kind, options...)
	if err != nil {
		return nil, err
	}
	if err := p.bind(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	r := &receiver{place: p, fd: fd, file: os.NewFile(uintptr(fd), "BFD"), ready: ready}
	// The structures point into themselves, so a receiver must stay where it is.
	r.vector.Base = &r.packet[0]
	r.vector.SetLen(len(r.packet))
	r.message.Name = (*byte)(unsafe.Pointer(&r.from))
	r.message.Iov, r.message.Iovlen = &r.vector, 1
	r.message.Control = &r.control[0]
	conn, err := r.file.SyscallConn()
	if err != nil {
		r.close()
		return nil, fmt.Errorf("wait for packets: %w", err)
	}
	go func() {
		// It is called again for each packet that comes, until the file is closed.
		_ = conn.Read(func(uintptr) (done bool) {
			r.notify()
			return false
		})
	}()
	return r, nil
}

// bind binds a socket to a place. Unless there are VRFs, it does not share the port with other
// sockets, whatever they allow: a daemon that shares it would get the packets instead of this one.
func (p place) bind(fd int) error {
	if err := toDevice(fd, cmp.Or(p.device, p.vrf)); err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	err := unix.Bind(fd, p.sockaddr(p.local, 0, p.port()))
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%s is another process's: another BFD daemon's, or another director's, whose neighbors have no source", p.text())
	}
	if err != nil {
		return fmt.Errorf("bind to %s: %w", p.text(), err)
	}
	return nil
}

// toDevice binds a socket to an interface, or to a VRF by its device; to none if that is empty.
func toDevice(fd int, name string) error {
	if name == "" {
		return nil
	}
	err := unix.BindToDevice(fd, name)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("there is no interface %s", name)
	}
	if err != nil {
		return fmt.Errorf("bind to interface %s: %w", name, err)
	}
	return nil
}

func (r *receiver) close() { r.file.Close() }

// notify says that there may be packets to read.
func (r *receiver) notify() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// read returns the next packet that has come, without waiting for one.
func (r *receiver) read() (a arrival, ok bool) {
	r.message.Namelen = uint32(unsafe.Sizeof(r.from))
	r.message.SetControllen(len(r.control))
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.message)), unix.MSG_DONTWAIT)
	if errno != 0 {
		return arrival{}, false
	}
	a.payload = r.packet[:n]
	a.from = r.source()
	for rest := r.control[:r.message.Controllen]; len(rest) >= unix.SizeofCmsghdr; {
		header, data, left, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			break
		}
		a.note(header.Level, header.Type, data)
		rest = left
	}
	return a, true
}

func (r *receiver) source() netip.Addr {
	if r.six {
		return netip.AddrFrom16(r.from.Addr)
	}
	return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&r.from)).Addr)
}

// note takes the control messages of the packet.
func (a *arrival) note(level, kind int32, data []byte) {
	switch {
	case level == unix.IPPROTO_IP && kind == unix.IP_TTL && len(data) >= 4,
		level == unix.IPPROTO_IPV6 && kind == unix.IPV6_HOPLIMIT && len(data) >= 4:
		a.ttl = int(*(*int32)(unsafe.Pointer(&data[0])))
	case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		a.to, a.index = netip.AddrFrom4([4]byte(data[8:12])), int(*(*int32)(unsafe.Pointer(&data[0])))
	case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		a.to, a.index = netip.AddrFrom16([16]byte(data[:16])), int(*(*int32)(unsafe.Pointer(&data[16])))
	}
}

// sender is a session's socket for sending. It is not connected: an ICMP error of the neighbor's
// host that the port is closed would cost a packet, and the source could not follow the route. Its
// port is the session's own (RFC 5881 4).
type sender struct {
	fd int
	to unix.Sockaddr
}

func openSender(k kind, vrf string, source, neighbor netip.Addr, zone int, random *rand.Rand) (*sender, error) {
	const interactive, internetControl = 6, 0xc0 // TC_PRIO_INTERACTIVE, CS6
	options := []option{{unix.SOL_SOCKET, unix.SO_PRIORITY, interactive}, {unix.SOL_SOCKET, unix.SO_RCVBUF, 0},
		{unix.IPPROTO_IP, unix.IP_TTL, gtsm}, {unix.IPPROTO_IP, unix.IP_TOS, internetControl}}
	if k.six {
		options = append(options[:2], option{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			option{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, gtsm}, option{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, internetControl})
	}
	fd, err := open(k, options...)
	if err != nil {
		return nil, err
	}
	if err := toDevice(fd, vrf); err != nil {
		unix.Close(fd)
		return nil, err
	}
	const attempts = 64
	for range attempts {
		port := firstSource + random.IntN(lastSource-firstSource+1)
		if err = unix.Bind(fd, k.sockaddr(source, 0, port)); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil, fmt.Errorf("%s is not an address of this host", source)
		}
		return nil, fmt.Errorf("bind to a source port: %w", err)
	}
	return &sender{fd, k.sockaddr(neighbor, zone, k.port())}, nil
}

func (s *sender) send(packet []byte) error { return unix.Sendto(s.fd, packet, unix.MSG_DONTWAIT, s.to) }

func (s *sender) close() { unix.Close(s.fd) }
