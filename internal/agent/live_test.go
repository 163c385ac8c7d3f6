package agent

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// street is the smallest lab there is:
//
//	client, and director made by hand ---- host
//	10.0.1.1                               10.0.1.11, agent, VIPs on lo
type street struct {
	lab          *netlab.Lab
	client, host *netlab.Host
	link         *netlab.Link
}

// newStreet makes a street. With xdp its ends leave nothing to each other: frames
// are no longer than the MTU, and checksums are there.
func newStreet(t testing.TB, xdp bool) *street {
	t.Helper()
	lab := netlab.ForTest(t)
	s := &street{lab: lab, client: lab.Host("client"), host: lab.Host("host")}
	s.link = lab.Link(s.client, s.host, netlab.LinkOptions{XDP: xdp,
		A: []string{"10.0.1.1/24", "2001:db8:1::1/64"}, B: []string{"10.0.1.11/24", "2001:db8:1::11/64"}})
	s.client.Route("192.0.2.0/24", "10.0.1.11")
	s.client.Route("2001:db8::/64", "2001:db8:1::11")
	s.host.Route("default", "10.0.1.1")
	s.host.Route("default", "2001:db8:1::1")
	return s
}

// agent opens the host's agent and gives it the configuration of the packet tables.
func (s *street) agent(t *testing.T, attach Attach) *Agent {
	t.Helper()
	var a *Agent
	err := s.host.Do(func() (err error) {
		if a, err = Open(Deps{Pin: s.host.BPFFS(), Attach: attach, Log: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		return a.Set(testConfig())
	})
	if err != nil {
		t.Fatalf("start agent: %v", err)
	}
	return a
}

func (s *street) status(t *testing.T, a *Agent) model.AgentStatus {
	t.Helper()
	var status model.AgentStatus
	err := s.host.Do(func() (err error) {
		status, err = a.Status()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// receiver is a TCP server at a VIP that answers with the hash of what it got.
type receiver struct {
	listener net.Listener
	segment  chan uint32 // the size of segments that the last connection saw
}

func (s *street) receive(t *testing.T, vip netip.Addr) *receiver {
	t.Helper()
	listener, err := s.host.Listen("tcp", netip.AddrPortFrom(vip, 443).String())
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{listener, make(chan uint32, 1)}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			hash := sha256.New()
			_, _ = io.Copy(hash, conn)
			r.segment <- received(conn)
			_, _ = conn.Write(hash.Sum(nil))
			_ = conn.Close()
		}
	}()
	return r
}

// received returns the kernel's idea of the size of the segments that a connection
// received: that of GSO where several came as one packet.
func received(conn net.Conn) uint32 {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0
	}
	var segment uint32
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			segment = info.Rcv_mss
		}
	})
	return segment
}

// send sends data to the VIP and checks that it arrived. It returns the size of the
// segments that were sent.
func (s *street) send(t *testing.T, vip netip.Addr, size int) int {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data)
	conn, err := s.client.DialContext(t.Context(), "tcp", netip.AddrPortFrom(vip, 443).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(data); err != nil {
		t.Fatalf("send: %v", err)
	}
	segment := maxSegment(t, conn)
	_ = conn.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("receive answer: %v", err)
	}
	if want := sha256.Sum256(data); string(got) != string(want[:]) {
		t.Fatalf("the server received something else")
	}
	return segment
}

func maxSegment(t *testing.T, conn net.Conn) int {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	segment := 0
	_ = raw.Control(func(fd uintptr) { segment, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) })
	if err != nil {
		t.Fatal(err)
	}
	return segment
}

// timestamps is what TCP's timestamps take of every segment (RFC 7323).
const timestamps = 12

// TestConnections opens connections that come in every kind of tunnel, caught in
// every way, and looks at what the kernel makes of their packets.
func TestConnections(t *testing.T) {
	for _, test := range []struct {
		name, via string
		offloads  bool // of the sender: checksums and segments are left to the receiver
	}{
		{"xdp", viaXDP, false},
		{"xdp behind offloads", viaXDP, true},
		{"tcx", viaTCX, true},
		{"clsact", viaClsact, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, via := newStreet(t, !test.offloads), test.via
			attach := AttachTC
			if via == viaXDP {
				attach = AttachXDP
			}
			a := s.agentVia(t, attach, via)
			defer s.detach(t, a)
			servers := map[netip.Addr]*receiver{vip4: s.receive(t, vip4), vip6: s.receive(t, vip6)}
			for _, w := range ways() {
				t.Run(w.String(), func(t *testing.T) { s.checkConnection(t, a, via, w, servers) })
			}
		})
	}
}

// agentVia opens an agent that catches packets in this way.
func (s *street) agentVia(t *testing.T, attach Attach, via string) *Agent {
	t.Helper()
	if via != viaClsact {
		a := s.agent(t, attach)
		if got := s.status(t, a).Interfaces; len(got) != 1 || got[0].Ingress != via {
			_ = a.Close()
			if via == viaTCX && len(got) == 1 && got[0].Ingress == viaClsact && !hasTCX() {
				t.Skip("this kernel is older than 6.6 and has no tcx")
			}
			t.Fatalf("attached as %+v, want %s", got, via)
		}
		return a
	}
	var a *Agent
	err := s.host.Do(func() (err error) {
		if a, err = Open(Deps{Pin: s.host.BPFFS(), Attach: attach, Log: slog.New(slog.DiscardHandler), noTCX: true}); err != nil {
			return err
		}
		return a.Set(testConfig())
	})
	if err != nil {
		t.Fatalf("start agent: %v", err)
	}
	return a
}

func (s *street) detach(t *testing.T, a *Agent) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Errorf("close agent: %v", err)
	}
	if err := s.host.Do(func() error { return Detach(s.host.BPFFS()) }); err != nil {
		t.Errorf("detach: %v", err)
	}
}

func (s *street) checkConnection(t *testing.T, a *Agent, via string, w way, servers map[netip.Addr]*receiver) {
	defer wrap(t, s.link.A, w)()
	vip, mss := w.vip()
	before := s.status(t, a)
	sent := s.send(t, vip, 4<<20)
	after := s.status(t, a)
	if sent != mss-timestamps {
		t.Errorf("the client sends segments of %d bytes, want %d", sent, mss-timestamps)
	}
	// Unwrapped super-packets must be told apart into the segments that were sent.
	if got := <-servers[vip].segment; int(got) != sent {
		t.Errorf("the server sees segments of %d bytes, want %d", got, sent)
	}
	packets, bytes := served(after, vip)
	packets0, bytes0 := served(before, vip)
	if packets -= packets0; packets == 0 {
		t.Error("the service counts no packets")
	}
	if average := (bytes - bytes0) / max(packets, 1); via != viaXDP && average < uplinkMTU {
		t.Errorf("packets are %d bytes long on average: no super-packets were unwrapped", average)
	}
	for i, c := range after.Reasons {
		if c.Name[:4] == "drop" && c != before.Reasons[i] {
			t.Errorf("%s went from %d to %d", c.Name, before.Reasons[i].Packets, c.Packets)
		}
	}
}

// served returns what the service at port 443 of a VIP counts.
func served(status model.AgentStatus, vip netip.Addr) (packets, bytes uint64) {
	for _, s := range status.Services {
		if s.VIP == vip && s.Port.First == 443 {
			return s.Packets, s.Bytes
		}
	}
	panic(fmt.Sprintf("%v is no service", vip))
}

// hasTCX says whether this kernel is new enough for tcx.
func hasTCX() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return true
	}
	var major, minor int
	_, _ = fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 6
}
