package health

import (
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connector makes connections for the probes that need nothing else, which are made by the
// thousand. Most of the cost of a goroutine for each would be waking up for its answer. So the
// scheduler asks the connector what became of all of them whenever it wakes up; its goroutine owns
// the connector.
type connector struct {
	dials []*dial
	polls []unix.PollFd
	// spares are sockets whose connection was ended, the last one at the end: connecting them again
	// costs less than new sockets.
	spares []spare
}

// spare is a socket that may be connected again.
type spare struct {
	likeness
	socket int
}

// likeness is equal for probes that can use each other's sockets.
type likeness struct {
	six   bool
	alike any // Alike of the ways that it was prepared for; nil: it goes to backends' own addresses
}

// mostSpare is how many spares are kept: usually more than are connected together.
const mostSpare = 128

// dial is a connection that is being made.
type dial struct {
	ctx      context.Context
	socket   int
	keep     bool // the socket may become a spare afterwards
	likeness likeness
	begun    time.Time
	deadline time.Time
	said     func(took time.Duration, err error) // nil: connected
}

// close ends all dials.
func (c *connector) close() {
	for _, d := range c.dials {
		c.end(d, context.Canceled)
	}
	c.dials = nil
	for _, s := range c.spares {
		closeSocket(s.socket)
	}
	c.spares = nil
}

// start begins to connect a socket for an attempt, and calls said with the result, at the latest at
// the timeout or the context's end. Then the socket is released.
func (c *connector) start(ctx context.Context, a *attempt, kind prepare, said func(took time.Duration, err error)) {
	now := time.Now()
	d := &dial{ctx: ctx, begun: now, deadline: now.Add(a.timeout), said: said}
	if err := c.open(d, a, kind); err != nil {
		said(0, err)
		return
	}
	if err := beginConnect(d.socket, a.way.To); err != unix.EINPROGRESS {
		c.end(d, err)
		return
	}
	a.from = localOf(d.socket)
	c.dials = append(c.dials, d)
}

// localOf is the end of a socket that is this host's; invalid: there is none.
func localOf(socket int) netip.AddrPort {
	switch a, _ := unix.Getsockname(socket); a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// open gives a dial its socket: a new one, or a spare that is as good.
func (c *connector) open(d *dial, a *attempt, kind prepare) (err error) {
	d.likeness = likeness{six: !a.way.To.Addr().Is4(), alike: a.way.Alike}
	d.keep = a.segment == 0 && (a.way.Prepare == nil || a.way.Alike != nil)
	var prepares []prepare
	if socket, ok := c.take(d); ok {
		d.socket = socket
		prepares = append(prepares, a.way.Again, kind)
	} else {
		domain := unix.AF_INET
		if d.likeness.six {
			domain = unix.AF_INET6
		}
		if d.socket, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("socket", err)
		}
		prepares = append(a.prepares(reset), kind)
	}
	for _, p := range prepares {
		if p == nil {
			continue
		}
		if err := p(d.socket); err != nil {
			closeSocket(d.socket)
			return err
		}
	}
	return nil
}

// take returns a spare socket that is as good as a new one for a dial. It looks at the last ones
// first: those of ways that no longer exist are at the beginning, and leave first.
func (c *connector) take(d *dial) (socket int, ok bool) {
	if !d.keep {
		return 0, false
	}
	for i := len(c.spares) - 1; i >= 0; i-- {
		if c.spares[i].likeness == d.likeness {
			socket = c.spares[i].socket
			c.spares = slices.Delete(c.spares, i, i+1)
			return socket, true
		}
	}
	return 0, false
}

// put keeps a socket that was disconnected.
func (c *connector) put(d *dial) {
	if len(c.spares) == mostSpare {
		closeSocket(c.spares[0].socket)
		c.spares = slices.Delete(c.spares, 0, 1)
	}
	c.spares = append(c.spares, spare{d.likeness, d.socket})
}

// collect reports what became of dials since the last call.
func (c *connector) collect() {
	if len(c.dials) == 0 {
		return
	}
	c.polls = c.polls[:0]
	for _, d := range c.dials {
		c.polls = append(c.polls, unix.PollFd{Fd: int32(d.socket), Events: unix.POLLOUT})
	}
	_, _ = unix.Poll(c.polls, 0) // after an error no dial has ended: the next call will collect
	now := time.Now()
	left := c.dials[:0]
	for i, d := range c.dials {
		switch events := c.polls[i].Revents; {
		case d.ctx.Err() != nil:
			c.end(d, d.ctx.Err())
		case events&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
			c.end(d, d.failure())
		case events != 0:
			c.end(d, nil)
		case !d.deadline.After(now):
			c.end(d, os.ErrDeadlineExceeded)
		default:
			left = append(left, d)
		}
	}
	clear(c.dials[len(left):])
	c.dials = left
}

// failure asks the kernel why there is no connection.
func (d *dial) failure() error {
	code, err := unix.GetsockoptInt(d.socket, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = os.NewSyscallError("connect", syscall.Errno(code))
	}
	return err
}

// end releases the socket and reports the result.
func (c *connector) end(d *dial, err error) {
	took := time.Since(d.begun)
	if err == nil {
		took = roundTrip(d.socket, took)
	}
	if err == nil && d.keep && disconnect(d.socket) == nil {
		c.put(d)
	} else {
		closeSocket(d.socket)
	}
	d.said(took, err)
}

// roundTrip is how long the kernel waited for the SYN-ACK, which is less than the time until the
// kernel was asked. The kernel does not know it if it had to send the SYN again.
func roundTrip(socket int, waited time.Duration) time.Duration {
	rtt := rttOf(socket)
	if rtt == 0 {
		return waited
	}
	return min(waited, rtt)
}

// Calls that do not block, made without telling Go's scheduler: it assumes that each ordinary call
// may last, and looks every 20 us whether to give its processor to others. With thousands of short
// calls a second that costs more than some of the calls.

// quickly makes a call, in which a pointer may be the second argument.
func quickly(call, socket uintptr, pointer unsafe.Pointer, size uintptr) error {
	if _, _, errno := unix.RawSyscall(call, socket, uintptr(pointer), size); errno != 0 {
		return errno
	}
	return nil
}

// beginConnect begins to connect a socket that does not block.
func beginConnect(socket int, to netip.AddrPort) error {
	port := bigEndian(to.Port())
	if to.Addr().Is4() {
		address := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: port, Addr: to.Addr().As4()}
		return quickly(unix.SYS_CONNECT, uintptr(socket), unsafe.Pointer(&address), unix.SizeofSockaddrInet4)
	}
	address := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port, Addr: to.Addr().As16()}
	return quickly(unix.SYS_CONNECT, uintptr(socket), unsafe.Pointer(&address), unix.SizeofSockaddrInet6)
}

// disconnect ends a socket's connection by an RST, and makes it one that was never connected.
func disconnect(socket int) error {
	address := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	return quickly(unix.SYS_CONNECT, uintptr(socket), unsafe.Pointer(&address), unsafe.Sizeof(address))
}

// closeSocket closes a socket whose connection ends by an RST: it waits for nothing.
func closeSocket(socket int) { _ = quickly(unix.SYS_CLOSE, uintptr(socket), nil, 0) }

// rttOf is how long the kernel has waited for a SYN-ACK; 0: the kernel does not say.
func rttOf(socket int) time.Duration {
	var info unix.TCPInfo
	size := uint32(unsafe.Offsetof(info.Rtt) + unsafe.Sizeof(info.Rtt)) // fields after it are not copied
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(info.Rtt) * time.Microsecond
}

func bigEndian(port uint16) uint16 {
	var bytes [2]byte
	binary.BigEndian.PutUint16(bytes[:], port)
	return binary.NativeEndian.Uint16(bytes[:])
}
