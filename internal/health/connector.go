package health

import (
	"context"
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
	// spare are sockets whose connection was ended, of IPv4 and of IPv6: to connect them again
	// takes less than new ones do.
	spare [2][]int
}

// mostSpare is how many of them are kept of a family: as many as are connected together, mostly.
const mostSpare = 64

// dial is a connection that is being made.
type dial struct {
	ctx      context.Context
	socket   int
	family   int // in spare; notSpare: only this way may use it
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
	for family, sockets := range c.spare {
		for _, socket := range sockets {
			closeSocket(socket)
		}
		c.spare[family] = nil
	}
}

// start begins to connect a socket for an attempt, and lets said have what becomes of it until
// the timeout or the context's end, when the socket is let go of again.
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
	c.dials = append(c.dials, d)
}

// notSpare is the family of sockets that were prepared for one way.
const notSpare = -1

// open gives a dial its socket: a new one, or one that was connected before and is as good.
func (c *connector) open(d *dial, a *attempt, kind prepare) (err error) {
	d.family = notSpare
	domain, family := unix.AF_INET6, 1
	if a.way.To.Addr().Is4() {
		domain, family = unix.AF_INET, 0
	}
	if a.way.Prepare == nil && a.segment == 0 {
		d.family = family
	}
	// What a kind prepares it prepares again.
	if d.family != notSpare && len(c.spare[family]) > 0 {
		last := len(c.spare[family]) - 1
		d.socket, c.spare[family] = c.spare[family][last], c.spare[family][:last]
	} else if d.socket, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	for _, p := range a.prepares(kind) {
		if err := p(d.socket); err != nil {
			closeSocket(d.socket)
			return err
		}
	}
	return nil
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

// end lets go of the socket and says what became of it.
func (c *connector) end(d *dial, err error) {
	took := time.Since(d.begun)
	if err == nil {
		took = roundTrip(d.socket, took)
	}
	if err == nil && d.family != notSpare && len(c.spare[d.family]) < mostSpare && disconnect(d.socket) == nil {
		c.spare[d.family] = append(c.spare[d.family], d.socket)
	} else {
		closeSocket(d.socket)
	}
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
