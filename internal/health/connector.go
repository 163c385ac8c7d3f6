package health

import (
	"context"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// connector makes connections for the probes that need nothing else: they are the ones
// that are made by the thousand. Most of what a goroutine for each would take is waking up
// for its answer. So a connector is asked what has become of all of them whenever the
// scheduler wakes up, whose goroutine owns it.
type connector struct {
	dials []*dial
	polls []unix.PollFd
}

// dial is a connection that is being made.
type dial struct {
	ctx      context.Context
	socket   int
	begun    time.Time
	deadline time.Time
	said     func(took time.Duration, err error) // nil: connected
}

// close ends all dials.
func (c *connector) close() {
	for _, d := range c.dials {
		d.end(context.Canceled)
	}
	c.dials = nil
}

// start begins to connect a socket, and lets said have what becomes of it until the
// timeout or the context's end, after the socket is closed again.
func (c *connector) start(ctx context.Context, to netip.AddrPort, timeout time.Duration, prepares []prepare, said func(took time.Duration, err error)) {
	now := time.Now()
	socket, err := newSocket(to, prepares)
	if err != nil {
		said(0, err)
		return
	}
	d := &dial{ctx, socket, now, now.Add(timeout), said}
	if err := unix.Connect(socket, sockaddr(to)); err != unix.EINPROGRESS {
		d.end(err)
		return
	}
	c.dials = append(c.dials, d)
}

func newSocket(to netip.AddrPort, prepares []prepare) (int, error) {
	family := unix.AF_INET6
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	socket, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	for _, p := range prepares {
		if err := p(socket); err != nil {
			unix.Close(socket)
			return 0, err
		}
	}
	return socket, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// collect says what has become of dials since it was asked last.
func (c *connector) collect() {
	if len(c.dials) == 0 {
		return
	}
	c.polls = c.polls[:0]
	for _, d := range c.dials {
		c.polls = append(c.polls, unix.PollFd{Fd: int32(d.socket), Events: unix.POLLOUT})
	}
	_, _ = unix.Poll(c.polls, 0) // with an error nothing has become of any: the next time will do
	now := time.Now()
	left := c.dials[:0]
	for i, d := range c.dials {
		switch events := c.polls[i].Revents; {
		case d.ctx.Err() != nil:
			d.end(d.ctx.Err())
		case events&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
			d.end(d.failure())
		case events != 0:
			d.end(nil)
		case !d.deadline.After(now):
			d.end(os.ErrDeadlineExceeded)
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

// end closes the socket and says what became of it.
func (d *dial) end(err error) {
	took := time.Since(d.begun)
	if err == nil {
		took = roundTrip(d.socket, took)
	}
	unix.Close(d.socket)
	d.said(took, err)
}

// roundTrip is how long the kernel waited for the SYN-ACK, which is less than until it was
// asked. It does not know where it had to send the SYN again.
func roundTrip(socket int, waited time.Duration) time.Duration {
	info, err := unix.GetsockoptTCPInfo(socket, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.Rtt == 0 {
		return waited
	}
	return min(waited, time.Duration(info.Rtt)*time.Microsecond)
}
