package health

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// largest is the largest datagram.
const largest = 1 << 16

// newUDP makes a probe that sends a datagram. If no answer is expected, the only failure is an ICMP
// error, before the timeout, that says that the port or host is not there.
func newUDP(how *model.HealthCheck) (probe, error) {
	var u model.HealthUDP
	if how.UDP != nil {
		u = *how.UDP
	}
	return func(ctx context.Context, a *attempt) error {
		conn, err := a.datagrams(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(u.Send)); err != nil {
			return err
		}
		if u.Expect == "" {
			_, err := conn.Read(make([]byte, 2048))
			if err != nil && explain(err, sending, a.timeout).Reason == Timeout {
				return nil
			}
			return err
		}
		return awaitText(conn, []byte(u.Expect))
	}, nil
}

// otherAnswer is for how long the right answer may come after another one.
const otherAnswer = 100 * time.Millisecond

// awaitText reads until an answer contains a text. An answer without it does not end the wait:
// anyone may forge one that arrives before the backend's.
func awaitText(conn net.Conn, text []byte) error {
	buffer := make([]byte, largest)
	var other error
	for range mostOthers {
		n, err := conn.Read(buffer)
		switch {
		case err != nil:
			return cmp.Or(other, err)
		case bytes.Contains(buffer[:n], text):
			return nil
		}
		if other == nil {
			if err := conn.SetReadDeadline(time.Now().Add(otherAnswer)); err != nil {
				return err
			}
		}
		other = failure(Body, "the answer, %d bytes, does not contain %q", n, text)
	}
	return other
}

// datagrams connects a UDP socket that ends with the context and reports every ICMP error.
func (a *attempt) datagrams(ctx context.Context) (net.Conn, error) {
	a.at = sending
	conn, err := a.dial(ctx, "udp", a.way.To.String(), a.allErrors)
	if err != nil {
		return nil, err
	}
	return bound(ctx, conn), nil
}

// allErrors makes the kernel also report those ICMP errors that may be transient, such as
// "host unreachable" (ip(7), IP_RECVERR).
func (a *attempt) allErrors(fd int) error {
	if a.way.To.Addr().Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
}
