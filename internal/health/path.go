package health

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// prepare is called with a probe's socket before anything is sent from it.
type prepare = func(socket int) error

// Path is how probes get to backends.
type Path interface {
	// Set sets all checks, before they are made.
	Set(checks []model.Check)
	// Way returns how the next probe of a check gets to its backend.
	Way(c *model.Check) model.Way
	// Failed is told that a probe of a check had no answer: the backend may have moved. It does not
	// wait for anything.
	Failed(c *model.Check)
}

// Direct is the path by this host's own routes: to the backend's address.
type Direct struct{}

// Set implements [Path].
func (Direct) Set([]model.Check) {}

// Way implements [Path].
func (Direct) Way(c *model.Check) model.Way { return model.Way{To: c.To} }

// Failed implements [Path].
func (Direct) Failed(*model.Check) {}

// attempt is one probe under way.
type attempt struct {
	check   *model.Check
	way     model.Way
	segment int // the longest TCP segment; 0: as the way has it
	timeout time.Duration
	at      step
	from    netip.AddrPort // of its socket; invalid: it is not known
	listed  []netip.Addr   // that a server of SCTP lists beside the address that was asked
}

// toVIP says whether the probe goes to the VIP.
func (a *attempt) toVIP() bool { return a.way.MTU != 0 }

// prepares are the functions that prepare a probe's socket.
func (a *attempt) prepares(more prepare) []prepare {
	var list []prepare
	for _, p := range []prepare{a.way.Prepare, more, a.shorten()} {
		if p != nil {
			list = append(list, p)
		}
	}
	return list
}

// shorten makes segments short; nil: they are as long as allowed.
func (a *attempt) shorten() prepare {
	if a.segment == 0 {
		return nil
	}
	return func(socket int) error {
		return unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_MAXSEG, a.segment)
	}
}

// dial connects a socket, prepared first for the path and then for the probe. It does not bind the
// socket: a port that is bound before the backend is known is taken for all backends, and there are
// only some 28,000.
func (a *attempt) dial(ctx context.Context, network, to string, more prepare) (net.Conn, error) {
	d := &net.Dialer{KeepAlive: -1}
	if prepares := a.prepares(more); len(prepares) > 0 {
		d.Control = func(_, _ string, socket syscall.RawConn) (err error) {
			return errors.Join(socket.Control(func(fd uintptr) {
				for _, p := range prepares {
					if err == nil {
						err = p(int(fd))
					}
				}
			}), err)
		}
	}
	conn, err := d.DialContext(ctx, network, to)
	if err != nil {
		return nil, err
	}
	if local, is := conn.LocalAddr().(interface{ AddrPort() netip.AddrPort }); is {
		a.from = netip.AddrPortFrom(local.AddrPort().Addr().Unmap(), local.AddrPort().Port())
	}
	return conn, nil
}

// connect makes a TCP connection that ends with the context, and by an RST: the end that closes
// first keeps the connection in TIME_WAIT for a minute, and a thousand probes a second would need
// more of them than a kernel keeps.
func (a *attempt) connect(ctx context.Context) (net.Conn, error) {
	a.at = connecting
	conn, err := a.dial(ctx, "tcp", a.way.To.String(), reset)
	if err != nil {
		return nil, err
	}
	a.at = asking
	return bound(ctx, conn), nil
}

// bound makes reads and writes fail when the context ends.
func bound(ctx context.Context, conn net.Conn) net.Conn {
	b := &boundConn{Conn: conn}
	b.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return b
}

type boundConn struct {
	net.Conn
	stop func() bool
}

// Close also releases the context.
func (b *boundConn) Close() error {
	b.stop()
	return b.Conn.Close()
}
