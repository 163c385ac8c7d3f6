package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// bothEnds is a redirected connection: the client's end and the server's.
type bothEnds struct {
	six            bool
	port           int // the client's
	client, server *net.TCPConn
}

// endsLab has one backend. The test gets its accepted connections.
type endsLab struct {
	*redirectLab
	service  redirectService
	accepted chan *net.TCPConn
	port     int // of the client, the last one in use
}

func newEndsLab(t *testing.T) *endsLab {
	l := &endsLab{service: redirectService{number: 1, port: 7000, fallback: "gue", health: "{kind: none}", backends: everyBackend(1)},
		accepted: make(chan *net.TCPConn, 8), port: 21000}
	l.redirectLab = newNarrowLab(t, size{backends: 1}, l.service)
	l.client.Sysctl("net.ipv4.tcp_tw_reuse", "1")
	listener, err := l.backends[0].Listen("tcp", ":7000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			l.accepted <- conn.(*net.TCPConn)
		}
	}()
	return l
}

// open connects from one of the client's ports.
func (l *endsLab) open(t *testing.T, six bool, port int) *bothEnds {
	t.Helper()
	return &bothEnds{six, port, l.dialFrom(t, six, port, l.service), l.accept(t)}
}

func (l *endsLab) accept(t *testing.T) *net.TCPConn {
	t.Helper()
	select {
	case conn := <-l.accepted:
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		return conn
	case <-time.After(time.Minute):
		t.Fatal("the server gets no connection")
		return nil
	}
}

// passes sends this many bytes one way.
func passes(t *testing.T, what string, from, to net.Conn, bytes int) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, bytes))
		sent <- err
	}()
	if _, err := io.ReadFull(to, make([]byte, bytes)); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if err := <-sent; err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (b *bothEnds) talk(t *testing.T, when string) {
	t.Helper()
	passes(t, when+": to the server", b.client, b.server, 10)
	passes(t, when+": to the client", b.server, b.client, 10)
}

// ends checks how the next read of a connection fails: nil is its normal end.
func ends(t *testing.T, who string, conn net.Conn, want error) {
	t.Helper()
	rest, err := io.ReadAll(conn)
	if len(rest) > 0 || !errors.Is(err, want) {
		t.Fatalf("the %s reads %d bytes and %v, want none and %v", who, len(rest), err, want)
	}
}

func resets(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	if err := errors.Join(conn.SetLinger(0), conn.Close()); err != nil {
		t.Fatal(err)
	}
}

// However a redirected connection ends, both kernels see the end as they would without
// redirection, and the same port of the client is redirected again at once.
func TestConnectionsEnd(t *testing.T) {
	t.Parallel()
	l := newEndsLab(t)
	for _, end := range []struct {
		name string
		end  func(t *testing.T, b *bothEnds)
	}{
		{"the client closes first", func(t *testing.T, b *bothEnds) {
			_ = b.client.Close()
			ends(t, "server", b.server, nil)
			_ = b.server.Close()
		}},
		{"the server closes first", func(t *testing.T, b *bothEnds) {
			_ = b.server.Close()
			ends(t, "client", b.client, nil)
			_ = b.client.Close()
		}},
		{"the client resets", func(t *testing.T, b *bothEnds) {
			resets(t, b.client)
			ends(t, "server", b.server, unix.ECONNRESET)
		}},
		{"the server resets", func(t *testing.T, b *bothEnds) {
			resets(t, b.server)
			ends(t, "client", b.client, unix.ECONNRESET)
		}},
		{"the server resets behind data", func(t *testing.T, b *bothEnds) {
			passes(t, "data", b.server, b.client, 100_000)
			resets(t, b.server)
			ends(t, "client", b.client, unix.ECONNRESET)
		}},
		{"the client half closes, and reads on", func(t *testing.T, b *bothEnds) {
			_ = b.client.CloseWrite()
			ends(t, "server", b.server, nil)
			passes(t, "after the client's FIN", b.server, b.client, 1<<20)
			_ = b.server.Close()
			ends(t, "client", b.client, nil)
			_ = b.client.Close()
		}},
		{"the server half closes, and reads on", func(t *testing.T, b *bothEnds) {
			_ = b.server.CloseWrite()
			ends(t, "client", b.client, nil)
			// Not much: the server's kernel takes the next SYN for an old one unless its number is
			// beyond the data received (RFC 6191), and initial numbers grow by 1,000 every 64 us.
			passes(t, "after the server's FIN", b.client, b.server, 1000)
			_ = b.client.Close()
			ends(t, "server", b.server, nil)
			_ = b.server.Close()
		}},
		{"a half close ends by a reset", func(t *testing.T, b *bothEnds) {
			_ = b.client.CloseWrite()
			ends(t, "server", b.server, nil)
			resets(t, b.server)
			ends(t, "client", b.client, unix.ECONNRESET)
		}},
		{"both close at once", l.closeTogether},
	} {
		t.Run(end.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				l.port++
				l.bypasses(t, 3, func() {
					for range 2 {
						b := l.open(t, six, l.port)
						b.talk(t, "before the end")
						end.end(t, b)
					}
					b := l.open(t, six, l.port)
					b.talk(t, "the same port again")
					resets(t, b.client)
					ends(t, "server", b.server, unix.ECONNRESET)
				})
			})
		})
	}
	if n := l.event("client", "again"); n != 0 {
		t.Errorf("%d SYNs were sent again", n)
	}
}

// between drops packets that come to a host, behind its agent's programs, until stop is called.
func between(t *testing.T, h *netlab.Host, which string) (stop func()) {
	t.Helper()
	on(t, h, "nft", "add table inet between; add chain inet between drops { type filter hook prerouting priority -300; }; add rule inet between drops "+which+" drop")
	return func() { on(t, h, "nft", "delete table inet between") }
}

// closeTogether makes each end send its FIN before it gets the other's: both come to TIME_WAIT.
func (l *endsLab) closeTogether(t *testing.T, b *bothEnds) {
	stop := between(t, l.router, "tcp flags & (syn | rst) == 0")
	_, _ = b.client.Close(), b.server.Close()
	in := func(h *netlab.Host, state, which string) bool {
		return strings.Contains(on(t, h, "ss", "-Htan", fmt.Sprintf("%s = :%d", which, b.port)), state)
	}
	waitFor(t, "both ends to have sent a FIN", func() bool { return in(l.client, "FIN-WAIT-1", "sport") && in(l.backends[0], "FIN-WAIT-1", "dport") })
	stop()
	waitFor(t, "both ends to have closed", func() bool { return in(l.client, "TIME-WAIT", "sport") && in(l.backends[0], "TIME-WAIT", "dport") })
}

// Lost packets of a handshake are sent again, whether or not agents restart meanwhile.
func TestConnectionsBeginAgain(t *testing.T) {
	t.Parallel()
	l := newEndsLab(t)
	restart := func() {
		for _, name := range []string{"client", "backend1"} {
			l.agents[name].end(syscall.SIGKILL)
		}
		for _, name := range []string{"client", "backend1"} {
			l.agents[name].start()
		}
		for _, name := range []string{"client", "backend1"} {
			l.agents[name].waitFor("answer", func() bool {
				_, err := tryOn(t, l.agents[name].host, weir, "status", "--alive", "--socket", l.agents[name].socket)
				return err == nil
			})
		}
	}
	for _, loss := range []struct {
		name  string
		at    *netlab.Host
		event string // on the client's host; it shows the loss
		taken bool   // over by the client's host despite the loss
	}{
		// The second SYN has no option, so the connection goes by the service's fallback.
		{"the SYN-ACK on its way", l.router, "again", false},
		{"the SYN-ACK behind the agent", l.client, "early", true},
	} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, agents start again: %v", loss.name, restarts), func(t *testing.T) {
				bothFamilies(t, func(t *testing.T, six bool) {
					l.port++
					before, taken := l.event("client", loss.event), l.event("client", "taken")
					begun := l.event("client", "asked")
					which := "tcp flags & (syn | ack) == (syn | ack)"
					if loss.at == l.router {
						which += " " + map[bool]string{false: "ip", true: "ip6"}[six] + " saddr " + lanAddress(backendHost, six).String()
					}
					stop := between(t, loss.at, which)
					dialed := make(chan error, 1)
					var client net.Conn
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						var err error
						client, err = l.client.DialContext(ctx, "tcp", l.service.at(six))
						dialed <- err
					}()
					waitFor(t, "a SYN to leave", func() bool { return l.event("client", "asked") > begun })
					if restarts {
						restart()
					}
					waitFor(t, "the SYN to be sent again", func() bool { return l.event("client", loss.event) > before })
					stop()
					if err := <-dialed; err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { client.Close() })
					b := &bothEnds{six, l.port, client.(*net.TCPConn), l.accept(t)}
					if err := b.client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
						t.Fatal(err)
					}
					b.talk(t, "after the handshake")
					if now := l.event("client", "taken"); (now > taken) != loss.taken {
						t.Errorf("%d connections were taken over, want that to be %v", now-taken, loss.taken)
					}
					resets(t, b.client)
					ends(t, "server", b.server, unix.ECONNRESET)
				})
			})
		}
	}
}

// A forged RST or FIN, by a sender that knows all of a connection except its numbers, ends it at
// neither end: the client's host still keeps calls of the backend itself from the same port apart.
func TestForgedEnds(t *testing.T) {
	t.Parallel()
	l := newEndsLab(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		l.port++
		b := l.open(t, six, l.port)
		b.talk(t, "before")
		direct := redirectService{number: l.service.number, port: l.service.port, backends: l.service.backends}
		clashes := func(when string) {
			t.Helper()
			before := l.event("client", "clash")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- l.callsItself(ctx, six, b.port, direct) }()
			waitFor(t, "a call of the backend itself to be dropped "+when, func() bool {
				select {
				case err := <-done:
					t.Fatalf("%s: a call of the backend itself ends with %v, and had to wait", when, err)
				default:
				}
				return l.event("client", "clash") > before
			})
			cancel()
			<-done
		}
		clashes("before the forgeries")
		next := nextNumber(t, b.client)
		for _, flags := range []layers.TCP{{RST: true}, {RST: true, ACK: true}, {FIN: true, ACK: true}} {
			// The first three are outside of any window. The last one is inside and not the
			// expected number, so the client's kernel asks the backend whether it is true.
			for _, ahead := range []uint32{1 << 31, 1 << 29, 0xff000000, 100} {
				if flags.FIN && ahead == 100 {
					continue // a FIN in the window is kept until the data before it comes
				}
				l.forge(t, b, flags, next+ahead)
			}
		}
		// Packets arrive in order: when this one is answered, the forgeries have arrived.
		b.talk(t, "after the forgeries")
		clashes("after the forgeries")
		resets(t, b.server)
		ends(t, "client", b.client, unix.ECONNRESET)
		waitFor(t, "a call of the backend itself to go after a true RST", func() bool { return l.callsItself(t.Context(), six, b.port, direct) == nil })
		l.accept(t)
	})
}

// callsItself calls the backend at its own address.
func (l *endsLab) callsItself(ctx context.Context, six bool, port int, to redirectService) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}, Control: reusesAddresses}
	return l.client.Do(func() error {
		return netlab.UntilFree(func() error {
			conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(lanAddress(backendHost, six), uint16(to.port)).String())
			if err == nil {
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
			return err
		})
	})
}

// nextNumber is the sequence number that a connection's kernel expects next.
func nextNumber(t *testing.T, conn *net.TCPConn) (next uint32) {
	t.Helper()
	const receives, without = 1, -1 // TCP_RECV_QUEUE, TCP_REPAIR_OFF_NO_WP (linux/tcp.h)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		s := int(fd)
		if failed = unix.SetsockoptInt(s, unix.SOL_TCP, unix.TCP_REPAIR, 1); failed != nil {
			return
		}
		var number int
		failed = unix.SetsockoptInt(s, unix.SOL_TCP, unix.TCP_REPAIR_QUEUE, receives)
		if failed == nil {
			number, failed = unix.GetsockoptInt(s, unix.SOL_TCP, unix.TCP_QUEUE_SEQ)
			next = uint32(number)
		}
		// TCP_REPAIR clears SO_REUSEADDR.
		failed = errors.Join(failed, unix.SetsockoptInt(s, unix.SOL_TCP, unix.TCP_REPAIR, without),
			unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatalf("ask for a connection's number: %v", err)
	}
	return next
}

// forge sends a packet with the backend's source from the neighbor, which is not on the
// connection's path.
func (l *endsLab) forge(t *testing.T, b *bothEnds, tcp layers.TCP, number uint32) {
	t.Helper()
	from, to := lanAddress(backendHost, b.six), b.client.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	tcp.SrcPort, tcp.DstPort, tcp.Seq, tcp.Window = layers.TCPPort(l.service.port), layers.TCPPort(b.port), number, 500
	sendSegment(t, l.neighbor, from, to, tcp)
}

// sendSegment sends a TCP packet with any source from a host.
func sendSegment(t *testing.T, h *netlab.Host, from, to netip.Addr, tcp layers.TCP) {
	t.Helper()
	var packet []byte
	family, where := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(to.AsSlice()[:4])})
	if to.Is6() {
		family, where = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
		ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolTCP, HopLimit: 64, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(ip) // ip is a network layer
		packet = frameOf(ip, &tcp)
	} else {
		ip := &layers.IPv4{Version: 4, Protocol: layers.IPProtocolTCP, TTL: 64, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(ip)
		packet = frameOf(ip, &tcp)
	}
	err := h.Do(func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, packet, 0, where)
	})
	if err != nil {
		t.Fatalf("forge a packet: %v", err)
	}
}
