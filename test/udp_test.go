package test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// echo sends datagrams back.
func echo(t *testing.T, h *netlab.Host, at netip.AddrPort) {
	t.Helper()
	serveUDP(t, h, at, func(datagram []byte) []byte { return datagram })
}

// echoStream sends back what comes in over TCP.
func echoStream(t *testing.T, h *netlab.Host, at netip.AddrPort) {
	t.Helper()
	serveTCP(t, h, at.String(), func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

// exchange sends a datagram of that size and returns the size of the answer. It tries several
// times, because one may be lost; 0 if none is answered.
func exchange(t *testing.T, conn net.Conn, size int) int {
	t.Helper()
	for range 5 {
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Fatalf("send %d bytes: %v", size, err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		if n, err := conn.Read(make([]byte, 1<<16)); err == nil {
			return n
		}
	}
	return 0
}

// largeBuffer gives a UDP socket room for datagrams that come while its process waits for the CPU.
func largeBuffer(t *testing.T, conn net.PacketConn) {
	t.Helper()
	control(t, conn.(*net.UDPConn), func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	})
}

// drain reads what has arrived.
func drain(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	for {
		if _, err := conn.Read(make([]byte, 1<<16)); err != nil {
			return
		}
	}
}
