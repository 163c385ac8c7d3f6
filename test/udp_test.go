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

// echo sends datagrams back. It listens at one address, so that it answers from
// the one that was called.
func echo(t *testing.T, h *netlab.Host, at netip.AddrPort) {
	t.Helper()
	conn, err := h.ListenPacket("udp", at.String())
	if err != nil {
		t.Fatalf("listen on %s: %v", h.Name, err)
	}
	t.Cleanup(func() { conn.Close() })
	largeBuffer(t, conn)
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, peer, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buffer[:n], peer)
		}
	}()
}

// echoStream sends back what comes in over TCP.
func echoStream(t *testing.T, h *netlab.Host, at netip.AddrPort) {
	t.Helper()
	listener, err := h.Listen("tcp", at.String())
	if err != nil {
		t.Fatalf("listen on %s: %v", h.Name, err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
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
