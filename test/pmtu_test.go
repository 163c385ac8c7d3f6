package test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// A packet that does not fit behind a tunnel's header is answered with the size that fits, and a
// packet that fits gets through: a client that may not fragment learns the size from the director.
//
//	client --- router --- switch --- director
//	                             --- backend      1500 everywhere
func TestClientLearnsWhatFits(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1})
	var services []string
	for _, w := range ways {
		services = append(services, w.service("udp", "7", everyBackend(1)))
	}
	l.start(services...)
	eachWay(t, func(t *testing.T, w way) {
		echo(t, l.backends[0], w.at(1, 7))
		conn := dialWhole(t, l.client, w)
		headers := 28
		if w.inner6 {
			headers = 48
		}
		fits := 1500 - w.overhead()
		waitFor(t, "the client to know that packets of "+w.String()+" may be no longer", func() bool {
			_, err := conn.Write(make([]byte, 1500-headers))
			if err != nil && !errors.Is(err, unix.EMSGSIZE) {
				t.Fatalf("send a full packet: %v", err)
			}
			return pathMTU(t, conn, w) == fits
		})
		drain(conn)
		if got := exchange(t, conn, fits-headers); got != fits-headers {
			t.Errorf("of a packet of %d bytes, which fits, %d bytes of data came back, want %d", fits, got, fits-headers)
		}
	})
}

// A client behind a narrow link gets large files: the router's ICMP errors about the servers'
// packets are addressed to the VIP, and reach the server that sent them.
//
//	client --- edge -1400- router --- switch --- director
//	                                         --- nginx, nginx
func TestServersLearnWhatFits(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 2, edgeMTU: 1400})
	var roots []string
	for _, b := range l.backends {
		roots = append(roots, startNginx(t, b))
	}
	l.start(webServices(2)...)
	data := noise()
	eachWay(t, func(t *testing.T, w way) {
		for _, root := range roots {
			if err := os.WriteFile(filepath.Join(root, "large"), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// Several, so that both backends get some.
		for range 4 {
			path := filepath.Join(l.client.Dir(), "large")
			curl(t, l.client, "-o", path, w.url("large"))
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("the download has %d bytes (%v), want %d", len(got), err, len(data))
			}
		}
	})
}

// dialWhole opens a UDP socket whose packets may not be fragmented.
func dialWhole(t *testing.T, client *netlab.Host, w way) *net.UDPConn {
	t.Helper()
	c, err := client.DialContext(t.Context(), "udp", netip.AddrPortFrom(w.vip(), 7).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	conn := c.(*net.UDPConn)
	control(t, conn, func(fd int) error {
		if w.inner6 {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	return conn
}

// pathMTU returns the MTU of the path to the VIP that the client's kernel knows.
func pathMTU(t *testing.T, conn *net.UDPConn, w way) (mtu int) {
	t.Helper()
	control(t, conn, func(fd int) (err error) {
		if w.inner6 {
			mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
			return err
		}
		mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
		return err
	})
	return mtu
}

func control(t *testing.T, conn *net.UDPConn, f func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil || failed != nil {
		t.Fatalf("socket option: %v", errors.Join(err, failed))
	}
}
