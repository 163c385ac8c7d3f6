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
		six                 bool
	}{{"IPv4", "tcp4", "127.0.0.1", false}, {"IPv6", "tcp6", "::1", true}} {
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
				if len(c.spares) != 1 || c.spares[0].likeness != (likeness{six: test.six}) {
					t.Errorf("%+v are kept, want the one socket that there is", c.spares)
				}
				if kind == model.CheckTCP { // the server sees nothing of the other kind
					ports = append(ports, endedByReset(t, listener))
					if want := netip.AddrPortFrom(to.Addr(), uint16(ports[len(ports)-1])); a.from != want {
						t.Errorf("the probe is said to come from %v, want %v", a.from, want)
					}
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
			if prepared != 1 || len(c.spares) != 1 {
				t.Errorf("a socket of a way was prepared %d times and %d are kept, want once and the one from before", prepared, len(c.spares))
			}
			if got := priorityOf(t, c.spares[0].socket); got != 0 {
				t.Errorf("the socket that is kept has priority %d, want 0", got)
			}
		})
	}
}

// Sockets that were prepared for a way are adapted to an equivalent way, and to no other; a mark
// and an address stay with them. The socket that was kept longest leaves first.
func TestSocketsOfWaysAlikeAreConnectedAgain(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	to := netip.MustParseAddrPort(listener.Addr().String())
	var c connector
	defer c.close()
	prepared, again := 0, 0
	connect := func(alike any, from byte, priority int) int {
		t.Helper()
		a := &attempt{check: &model.Check{To: to, How: &model.HealthCheck{Kind: model.CheckTCP}}, timeout: 5 * time.Second}
		choose := func(socket int) error {
			return errors.Join(unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PRIORITY, priority),
				unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1000))
		}
		a.way = model.Way{To: to, Alike: alike, Prepare: func(socket int) error {
			prepared++
			return errors.Join(choose(socket), unix.SetsockoptInt(socket, unix.IPPROTO_IP, unix.IP_TTL, 2),
				unix.SetsockoptInt(socket, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
				unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, from}}))
		}, Again: func(socket int) error { again++; return choose(socket) }}
		if err := c.connect(a); err != nil {
			t.Fatal(err)
		}
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := conn.RemoteAddr().(*net.TCPAddr); !got.IP.Equal(net.IPv4(127, 0, 0, from)) {
			t.Errorf("the connection came from %v, want from 127.0.0.%d", got, from)
		}
		last := c.spares[len(c.spares)-1].socket
		if got := priorityOf(t, last); got != priority {
			t.Errorf("the socket has priority %d, want %d", got, priority)
		}
		if hops, err := unix.GetsockoptInt(last, unix.IPPROTO_IP, unix.IP_TTL); err != nil || hops != 2 {
			t.Errorf("the socket has TTL %d (%v), want 2", hops, err)
		}
		if got := segmentOf(t, conn); got > 1000 {
			t.Errorf("the server was told of segments of %d bytes, want 1000", got)
		}
		return last
	}
	first := connect("one", 2, 7)
	if got := connect("one", 2, 9); got != first || prepared != 1 || again != 1 {
		t.Errorf("socket %d was prepared %d times, and %d times again, want %d prepared once and again", got, prepared, again, first)
	}
	if got := connect("other", 3, 8); got == first || prepared != 2 || len(c.spares) != 2 {
		t.Errorf("a way that is not alike took socket %d of %d, was prepared as number %d", got, len(c.spares), prepared)
	}
	for len(c.spares) < mostSpare {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.put(&dial{socket: socket, likeness: likeness{alike: "third"}})
	}
	if got := connect("one", 2, 5); got != first || c.spares[0].alike != "other" || len(c.spares) != mostSpare {
		t.Errorf("socket %d was taken, and %v is the one that was kept longest", got, c.spares[0])
	}
	if connect("fourth", 4, 5); c.spares[0].alike != "third" || len(c.spares) != mostSpare {
		t.Errorf("%d sockets are kept, the one that was kept longest is of %v", len(c.spares), c.spares[0].alike)
	}
}

// segmentOf is the longest segment that a connection sends.
func segmentOf(t *testing.T, conn net.Conn) (bytes int) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		bytes, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return bytes
}

func priorityOf(t *testing.T, socket int) int {
	t.Helper()
	priority, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PRIORITY)
	if err != nil {
		t.Fatal(err)
	}
	return priority
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
