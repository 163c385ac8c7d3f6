package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/packet"
)

// wire is the client's end of a street by hand: frames out, frames in. With it a
// test holds a connection in any state, which no kernel's client would stay in.
type wire struct {
	t      testing.TB
	fd     int
	street *street
}

func (s *street) wire(t testing.TB) *wire {
	t.Helper()
	w := &wire{t: t, street: s}
	do(t, s.client, "open the wire", func() (err error) {
		all := networkOrder(unix.ETH_P_ALL)
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(all)); err != nil {
			return err
		}
		short := unix.NsecToTimeval(int64(100 * time.Millisecond)) // between two looks at the deadline
		return errors.Join(
			unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: s.link.A.Index}),
			unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &short))
	})
	t.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

// flow is one connection of the wire. Numbers are those that come next.
type flow struct {
	*wire
	vip, client netip.Addr
	port        uint16
	next, ack   uint32
	flags       uint8  // of the packet that was received last
	window      uint32 // that the host announced in it
}

var nextPort uint16 = 20000

func (w *wire) flow(vip netip.Addr) *flow {
	nextPort++
	f := &flow{wire: w, vip: vip, client: client4, port: nextPort, next: 1000}
	if vip.Is6() {
		f.client = client6
	}
	return f
}

// segment is a packet of the flow, from its IP header on.
func (f *flow) segment(flags uint8, seq, ack uint32, data string) frame {
	return frame{ip(f.client, f.vip), packet.TCPHeader{Src: f.port, Dst: 443, Flags: flags, Seq: seq, Ack: ack, Window: 65535},
		packet.Text(data)}
}

func (f *flow) send(flags uint8, data string) {
	f.t.Helper()
	ether := packet.EthernetHeader{Dst: [6]byte(f.street.link.B.MAC), Src: [6]byte(f.street.link.A.MAC)}
	b := build(frame{ether}, f.segment(flags, f.next, f.ack, data))
	if _, err := unix.Write(f.fd, b); err != nil {
		f.t.Fatalf("send: %v", err)
	}
	f.next += uint32(len(data))
	if flags&(packet.SYN|packet.FIN) != 0 {
		f.next++
	}
}

// receive waits for a packet of the flow with these flags, and takes its number.
func (f *flow) receive(flags uint8) {
	f.t.Helper()
	b := make([]byte, 2048)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n, err := unix.Read(f.fd, b)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			f.t.Fatalf("receive: %v", err)
		}
		if tcp := f.parse(b[:max(n, 0)]); tcp != nil && tcp[13]&flags == flags {
			f.ack = binary.BigEndian.Uint32(tcp[4:])
			f.flags, f.window = tcp[13], uint32(binary.BigEndian.Uint16(tcp[14:]))
			if flags&(packet.SYN|packet.FIN) != 0 {
				f.ack++
			}
			return
		}
	}
	f.t.Fatalf("no packet with flags %#x came within %v", flags, patience)
}

// parse returns the TCP header of a frame from the VIP to the flow's port.
func (f *flow) parse(b []byte) []byte {
	at := 14 + 20
	if f.vip.Is6() {
		at = 14 + 40
	}
	if len(b) < at+20 || b[12] == 0x08 != f.vip.Is4() || binary.BigEndian.Uint16(b[at:]) != 443 ||
		binary.BigEndian.Uint16(b[at+2:]) != f.port {
		return nil
	}
	return b[at:]
}

// open opens the connection as a client does.
func (f *flow) open() {
	f.t.Helper()
	f.ask()
	f.send(packet.ACK, "")
}

// ask begins to: the host has answered, and waits.
func (f *flow) ask() {
	f.t.Helper()
	f.send(packet.SYN, "")
	f.receive(packet.SYN | packet.ACK)
}

// write sends a frame to the host. Ethernet is the link's.
func (w *wire) write(out []byte) {
	w.t.Helper()
	copy(out, w.street.link.B.MAC)
	copy(out[6:], w.street.link.A.MAC)
	if _, err := unix.Write(w.fd, out); err != nil {
		w.t.Fatalf("send: %v", err)
	}
}

// forget drops what has come and nobody has read. While a test does other things the host sends
// again what nobody acknowledges, until the socket has no room for what comes next.
func (w *wire) forget() {
	w.t.Helper()
	b := make([]byte, 1)
	for {
		if _, _, err := unix.Recvfrom(w.fd, b, unix.MSG_DONTWAIT); errors.Is(err, unix.EAGAIN) {
			return
		} else if err != nil && !errors.Is(err, unix.EINTR) {
			w.t.Fatalf("receive: %v", err)
		}
	}
}

// passes sends a frame, again until the host has found the next hop's MAC, and waits
// for another to come back. Ethernet is the link's.
func (w *wire) passes(out, want []byte) {
	w.t.Helper()
	copy(want, w.street.link.A.MAC)
	copy(want[6:], w.street.link.B.MAC)
	b := make([]byte, 2048)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		w.write(out)
		for {
			n, err := unix.Read(w.fd, b)
			if err != nil {
				break
			}
			if bytes.Equal(b[:n], want) {
				return
			}
		}
	}
	w.t.Fatalf("did not come back within %v:\n%s", patience, packet.Describe(want))
}
