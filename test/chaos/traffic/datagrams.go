package traffic

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// serveDatagrams answers datagrams from the address that they were sent to.
func (s *Server) serveDatagrams(ctx context.Context, address string) error {
	packets, err := s.host.ListenPacket("udp4", address)
	if err != nil {
		return err
	}
	conn := packets.(*net.UDPConn)
	if err := askForDestinations(conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		buffer, control := make([]byte, 2048), make([]byte, 128)
		for {
			n, nc, _, peer, err := conn.ReadMsgUDPAddrPort(buffer, control)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				s.answerDatagram(conn, buffer[:n], control[:nc], peer)
			}
		}
	}()
	return nil
}

// answerDatagram sends the flow's next bytes back if the datagram has the flow's bytes.
func (s *Server) answerDatagram(conn *net.UDPConn, datagram, control []byte, peer netip.AddrPort) {
	if len(datagram) < requestSize {
		return
	}
	r := parseRequest(datagram)
	who := s.identity()
	s.tracker.gotDatagram(r.id, who)
	a := answer{id: r.id, from: who}
	// The up of a datagram's request is where its bytes begin in the stream.
	up, down := Up(r.id), Down(r.id)
	up.offset, down.offset = uint64(r.up), uint64(r.up)
	if up.Check(datagram[requestSize:]) != nil {
		a.status, r.down = wrong, 0
	}
	out := a.append(make([]byte, 0, answerSize+int(min(r.down, maxDatagram))))
	out = out[:cap(out)]
	down.Fill(out[answerSize:])
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO {
			// ipi_addr is the destination in the header.
			source := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[8:12])})
			_, _, _ = conn.WriteMsgUDPAddrPort(out, source, peer) // lost like any datagram
		}
	}
}

// maxDatagram bounds the data of a datagram without its header.
const maxDatagram = 1200

func askForDestinations(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	})
	return errors.Join(err, set)
}
