package health

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// Sockets are connected again, each time as if they were new: from another port, and the
// server sees an RST at the end of each connection. Those that were prepared for a way are not.
func TestSocketsAreConnectedAgain(t *testing.T) {
	for _, test := range []struct {
		name, network, host string
		family              int
	}{{"IPv4", "tcp4", "127.0.0.1", 0}, {"IPv6", "tcp6", "::1", 1}} {
		t.Run(test.name, func(t *testing.T) {
			listener, err := net.Listen(test.network, net.JoinHostPort(test.host, "0"))
			if err != nil {
				t.Skipf("this host has no %s: %v", test.name, err)
			}
			defer listener.Close()
			to := netip.MustParseAddrPort(listener.Addr().String())
			var c connector
			defer c.close()
			var ports []int
			for _, kind := range []model.CheckKind{model.CheckTCP, model.CheckTCP, model.CheckSYN, model.CheckTCP} {
				a := &attempt{check: &model.Check{To: to, How: &model.HealthCheck{Kind: kind}}, timeout: 5 * time.Second}
				a.way = Direct{}.Way(a.check)
				if err := c.connect(a); err != nil {
					t.Fatal(err)
				}
				if n := len(c.spare[test.family]); n != 1 || len(c.spare[1-test.family]) != 0 {
					t.Errorf("%d sockets of the family are kept and %d others, want the one that there is", n, len(c.spare[1-test.family]))
				}
				if kind == model.CheckTCP { // the server sees nothing of the other kind
					ports = append(ports, endedByReset(t, listener))
				}
			}
			slices.Sort(ports)
			if n := len(slices.Compact(ports)); n == 1 {
				t.Errorf("all connections came from port %d", ports[0])
			}
			prepared := 0
			a := &attempt{check: &model.Check{To: to, How: &model.HealthCheck{Kind: model.CheckTCP}}, timeout: 5 * time.Second}
			a.way = model.Way{To: to, Prepare: func(socket int) error {
				prepared++
				return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PRIORITY, 3)
			}}
			if err := c.connect(a); err != nil {
				t.Fatal(err)
			}
			if prepared != 1 || len(c.spare[test.family]) != 1 {
				t.Errorf("a socket of a way was prepared %d times and %d are kept, want once and the one from before", prepared, len(c.spare[test.family]))
			}
			priority, err := unix.GetsockoptInt(c.spare[test.family][0], unix.SOL_SOCKET, unix.SO_PRIORITY)
			if err != nil || priority != 0 {
				t.Errorf("the socket that is kept has priority %d (%v), want 0", priority, err)
			}
		})
	}
}

// endedByReset accepts a connection, waits for its end, and returns where it came from.
func endedByReset(t *testing.T, listener net.Listener) int {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	if err := listener.(*net.TCPListener).SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server sees %v at the end, want %v", err, syscall.ECONNRESET)
	}
	return conn.RemoteAddr().(*net.TCPAddr).Port
}
