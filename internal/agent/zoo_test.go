package agent

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// zooLife is how long the sockets of a zoo are sure to stay as they are: the kernel
// keeps TIME_WAIT for 60 s, gives a handshake up after 63 s, and accepts a cookie for
// one minute at least.
const zooLife = 40 * time.Second

// zoo is connections in every state that a host can have them in, and the list of them
// that the twin gets. The test has seen all of its content on the wire.
type zoo struct {
	*second
	host     *twin.Host
	animals  []*flow
	accepted []net.Conn // that the servers have open
	until    time.Time
}

func newZoo(t testing.TB) *zoo {
	z := &zoo{second: newSecond(t)}
	t.Cleanup(z.free)
	return z
}

func (z *zoo) free() {
	for _, conn := range z.accepted {
		_ = conn.Close()
	}
	z.accepted = nil
}

// fill opens all connections anew.
func (z *zoo) fill(t *testing.T) {
	t.Helper()
	z.wire.t = t
	z.free()
	z.forget()
	z.host = &twin.Host{
		Addresses: map[netip.Addr]bool{host4: true, host6: true},
		Sockets:   map[twin.Connection]twin.Socket{},
		Cookies:   map[twin.Connection]twin.Cookie{},
	}
	z.animals, z.until = nil, time.Now().Add(zooLife)
	for _, vip := range []netip.Addr{vip4, vip6} {
		z.catchCookie(vip)
		for _, catch := range []func(*testing.T, *flow){z.catchOpen, z.catchFinWait1, z.catchFinWait2, z.catchCloseWait,
			z.catchLastAck, z.catchClosing, z.catchAsked, z.catchTimeWait, z.catchHalfTimeWait} {
			f := z.flow(vip)
			catch(t, f)
			z.animals = append(z.animals, f)
		}
		none := z.flow(vip)
		none.next, none.ack = 5000, 77000
		z.animals = append(z.animals, none)
	}
}

func (z *zoo) has(f *flow, s twin.Socket) { z.host.Sockets[f.connection()] = s }

func (f *flow) connection() twin.Connection {
	return twin.Connection{Client: netip.AddrPortFrom(f.client, f.port), VIP: netip.AddrPortFrom(f.vip, 443)}
}

func (z *zoo) opened(t *testing.T, f *flow) net.Conn {
	t.Helper()
	f.open()
	select {
	case conn := <-z.second.accepted: // which outlives t
		z.accepted = append(z.accepted, conn)
		return conn
	case <-time.After(patience):
		t.Fatal("the server got no connection")
		return nil
	}
}

func (z *zoo) catchOpen(t *testing.T, f *flow) {
	z.opened(t, f)
	z.has(f, twin.Socket{State: twin.Open})
}

func (z *zoo) catchFinWait1(t *testing.T, f *flow) {
	_ = z.opened(t, f).(*net.TCPConn).CloseWrite()
	f.receive(packet.FIN)
	z.has(f, twin.Socket{State: twin.Open})
}

func (z *zoo) catchFinWait2(t *testing.T, f *flow) {
	z.catchFinWait1(t, f)
	f.send(packet.ACK, "")
}

func (z *zoo) catchCloseWait(t *testing.T, f *flow) {
	z.opened(t, f)
	f.send(packet.ACK|packet.FIN, "")
	f.receive(packet.ACK)
	z.has(f, twin.Socket{State: twin.Open})
}

func (z *zoo) catchLastAck(t *testing.T, f *flow) {
	z.catchCloseWait(t, f)
	_ = z.accepted[len(z.accepted)-1].Close()
	f.receive(packet.FIN)
}

// catchClosing: both have sent a FIN, and neither has been acknowledged by the client.
func (z *zoo) catchClosing(t *testing.T, f *flow) {
	z.catchFinWait1(t, f)
	f.ack--
	f.send(packet.ACK|packet.FIN, "")
	f.receive(packet.ACK)
}

func (z *zoo) catchAsked(_ *testing.T, f *flow) {
	f.ask()
	z.has(f, twin.Socket{State: twin.Asked, SYN: f.next - 1, Answer: f.ack - 1})
}

func (z *zoo) catchTimeWait(t *testing.T, f *flow) {
	_ = z.opened(t, f).Close()
	f.receive(packet.FIN)
	f.send(packet.ACK|packet.FIN, "")
	f.receive(packet.ACK)
	z.ended(f)
}

// catchHalfTimeWait: the server's process is gone, and the client has not ended yet. The
// kernel keeps as little of that as of TIME_WAIT.
func (z *zoo) catchHalfTimeWait(t *testing.T, f *flow) {
	_ = z.opened(t, f).Close()
	f.receive(packet.FIN)
	f.send(packet.ACK, "")
	z.ended(f)
}

// ended lets the kernel tell the window of what has ended, as the answer to a keepalive.
// It comes when all before it has been seen to.
func (z *zoo) ended(f *flow) {
	f.next--
	f.send(packet.ACK, "")
	f.next++
	for f.flags = 0; f.flags != packet.ACK; { // a FIN that the kernel sends again has come before
		f.receive(packet.ACK)
	}
	z.has(f, twin.Socket{State: twin.Ended, Next: f.next, Window: f.window})
}

// catchCookie opens a connection of which the host only has what it has told the client.
func (z *zoo) catchCookie(vip netip.Addr) {
	z.street.host.Sysctl("net.ipv4.tcp_syncookies", "2")
	f := z.flow(vip)
	f.ask()
	z.street.host.Sysctl("net.ipv4.tcp_syncookies", "1")
	z.host.Cookies[f.connection()] = twin.Cookie{Sequence: f.next, Ack: f.ack}
	z.animals = append(z.animals, f)
}
