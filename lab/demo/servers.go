package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// serve runs a backend's servers until the context ends: HTTP, which answers with the backend's
// number and what it was sent, and an echo of datagrams that begins with the backend's number.
func serve(ctx context.Context, host *netlab.Host, number int) error {
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Backend", fmt.Sprint(number))
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = w.Write(body)
	})}
	context.AfterFunc(ctx, func() { server.Close() })
	for _, port := range []int{httpPort, natHTTPPort} {
		listener, err := host.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return fmt.Errorf("listen for HTTP on %s: %w", host.Name, err)
		}
		go server.Serve(listener)
	}
	for _, port := range []int{echoPort, natEchoPort} {
		for _, network := range []string{"udp4", "udp6"} {
			if err := serveEcho(ctx, host, network, port, number); err != nil {
				return fmt.Errorf("listen for datagrams on %s: %w", host.Name, err)
			}
		}
	}
	return nil
}

func serveEcho(ctx context.Context, host *netlab.Host, network string, port, number int) error {
	packets, err := host.ListenPacket(network, fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	conn := packets.(*net.UDPConn)
	if err := askForDestinations(conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		buffer, control := make([]byte, 1<<16), make([]byte, 256)
		buffer[0] = byte(number)
		for {
			n, nc, _, peer, err := conn.ReadMsgUDPAddrPort(buffer[1:], control)
			if err != nil {
				return
			}
			answer(conn, buffer[:1+n], control[:nc], peer)
		}
	}()
	return nil
}

// askForDestinations makes the kernel say which address a datagram was for: a server on every
// address must answer from the address that was called, the VIP.
func askForDestinations(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if conn.LocalAddr().(*net.UDPAddr).IP.To4() != nil {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			return
		}
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	return errors.Join(err, set)
}

// answer sends a datagram back from the address that it was sent to.
func answer(conn *net.UDPConn, datagram, control []byte, peer netip.AddrPort) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return
	}
	var source []byte
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO:
			source = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[8:12])}) // ipi_addr: the header's destination
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO:
			source = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])})
		}
	}
	_, _, _ = conn.WriteMsgUDPAddrPort(datagram, source, peer)
}
