package agent

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/packet"
)

const tcRedirect = 7

var (
	third4, third6 = netip.MustParseAddr("10.0.1.14"), netip.MustParseAddr("2001:db8:1::14")
)

// row writes a GUE header's private data as a director does.
func row(next int, hops ...netip.Addr) []byte {
	b := []byte{bpfRowKind, byte(len(hops)), byte(next), 0}
	for _, hop := range hops {
		b = append(b, hop.AsSlice()...)
	}
	return b
}

const bpfRowKind = 0x57

// second is a lab for second chance: a host with servers at its VIPs, and programs
// that are run by hand in its namespace.
type second struct {
	*testHost
	*wire
	accepted chan net.Conn
}

func newSecond(t testing.TB) *second {
	t.Helper()
	s := newStreet(t, true)
	s.host.Address("lo", vip4.String()+"/32", vip6.String()+"/128")
	r := &second{testHost: newTestHost(t), wire: s.wire(t), accepted: make(chan net.Conn, 64)}
	for _, vip := range []netip.Addr{vip4, vip6} {
		r.serve(t, s.host, vip)
	}
	return r
}

func (r *second) serve(t testing.TB, h *netlab.Host, vip netip.Addr) {
	t.Helper()
	listener, err := h.Listen("tcp", netip.AddrPortFrom(vip, 443).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.accepted <- conn
		}
	}()
}

// accept returns the connection that the server has just got.
func (r *second) accept(t testing.TB) net.Conn {
	t.Helper()
	select {
	case conn := <-r.accepted:
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	case <-time.After(patience):
		t.Fatal("the server got no connection")
		return nil
	}
}

// outcome is what becomes of a packet with a row.
type outcome struct {
	in     []byte
	inner  frame
	reason bpfHostReason
	out    []byte // after tc
}

// check runs a packet through all three programs, as the host would.
func (r *second) check(t *testing.T, o outcome) {
	t.Helper()
	drop := isDrop(o.reason)
	passed := o.reason == bpfHostReasonHOST_PASSED_ON
	for _, p := range []struct {
		name    string
		program *ebpf.Program
		verdict uint32
		silent  bool // neither counts nor changes it: the next one does
		skipped bool
	}{
		{"xdp", r.HostXdp, map[bool]uint32{true: xdpDrop, false: xdpPass}[drop], passed, false},
		{"tc", r.HostIngress, map[bool]uint32{true: tcShot, false: tcNext}[drop], false, false},
		{"tc after xdp", r.HostAfterXdp, map[bool]uint32{true: tcShot, false: tcNext}[drop], false, false},
	} {
		want, wantOut := p.verdict, o.out
		if passed && !p.silent {
			want = tcRedirect
		}
		if p.silent {
			wantOut = o.in
		}
		before := r.counts(t)
		var verdict uint32
		out := make([]byte, len(o.in)+256)
		options := &ebpf.RunOptions{Data: o.in, DataOut: out}
		do(t, r.street.host, "run "+p.name, func() (err error) {
			verdict, err = p.program.Run(options)
			return err
		})
		after := r.counts(t)
		if verdict != want {
			t.Errorf("%s: verdict is %d, want %d\n%s", p.name, verdict, want, packet.Describe(o.in))
		}
		if !drop {
			packet.Equal(t, options.DataOut, wantOut)
			checkChecksums(t, options.DataOut)
		}
		if p.silent {
			for i := range after.reasons {
				if after.reasons[i] != before.reasons[i] {
					t.Errorf("%s counts %s", p.name, reasonName(t, bpfHostReason(i)))
				}
			}
			continue
		}
		service, inner := "", 0
		if !drop && !passed {
			service, inner = serviceOf(o.inner), len(o.out)-14
		}
		checkCounts(t, before, after, o.reason, len(o.in)-14, service, inner)
	}
}

// serviceOf names the service that counts a packet of the flow, or an ICMP error.
func serviceOf(inner frame) string {
	segment := slices.ContainsFunc(inner, func(h packet.Header) bool {
		_, is := h.(packet.TCPHeader)
		return is
	})
	_, datagram := inner[1].(packet.UDPHeader)
	_, sctp := inner[1].(packet.SCTPHeader)
	switch vip := inner[0].(type) {
	case packet.IPv4Header:
		if segment {
			return "web4"
		}
		if datagram {
			return "talk4"
		}
		if sctp {
			return "chat4"
		}
		return vip.Dst.String()
	case packet.IPv6Header:
		if segment {
			return "web6"
		}
		if datagram {
			return "talk6"
		}
		if sctp {
			return "chat6"
		}
		return vip.Dst.String()
	}
	return ""
}

// outers are the tunnels that carry rows: over either family, with and without a
// UDP checksum.
func outers() []rowTunnel {
	var list []rowTunnel
	for _, noChecksum := range []bool{true, false} {
		list = append(list,
			rowTunnel{director4, host4, []netip.Addr{peer4, third4}, noChecksum},
			rowTunnel{director6, host6, []netip.Addr{peer6, third6}, noChecksum})
	}
	return list
}

type rowTunnel struct {
	from, to   netip.Addr
	hops       []netip.Addr
	noChecksum bool
}

func (o rowTunnel) wrap(from, to netip.Addr, private []byte, inner frame) []byte {
	return build(frame{ether, ip(from, to), packet.UDPHeader{Src: 50000, Dst: 6080, NoChecksum: o.noChecksum},
		packet.GUEHeader{Private: private}}, inner)
}

// judge sends a packet of which it is known whether its connection is here, with
// every row that says something else.
func (r *second) judge(t *testing.T, inner frame, here bool) {
	t.Helper()
	for _, o := range outers() {
		up := build(frame{ether}, inner)
		for next := range len(o.hops) + 1 {
			c := outcome{in: o.wrap(o.from, o.to, row(next, o.hops...), inner), inner: inner}
			switch {
			case here:
				c.reason, c.out = bpfHostReasonHOST_DECAP_GUE, up
			case next == len(o.hops):
				c.reason, c.out = bpfHostReasonHOST_DECAP_LAST_RESORT, up
			default:
				c.reason = bpfHostReasonHOST_PASSED_ON
				c.out = o.wrap(o.to, o.hops[next], row(next+1, o.hops...), inner)
			}
			r.check(t, c)
			if t.Failed() {
				t.Fatalf("over %v, checksum %v, hop %d", o.to, !o.noChecksum, next)
			}
		}
	}
}

// TestSecondChance is the table by which a host decides whether a connection is
// here, with real sockets in every state.
func TestSecondChance(t *testing.T) {
	r := newSecond(t)
	for _, vip := range []netip.Addr{vip4, vip6} {
		t.Run(vip.String(), func(t *testing.T) {
			for _, cookies := range []string{"0", "1", "2"} {
				r.street.host.Sysctl("net.ipv4.tcp_syncookies", cookies)
				t.Run("no connection, syncookies "+cookies, func(t *testing.T) { r.testListen(t, vip) })
				t.Run("established, syncookies "+cookies, func(t *testing.T) { r.testEstablished(t, vip) })
			}
			r.street.host.Sysctl("net.ipv4.tcp_syncookies", "2")
			t.Run("cookie", func(t *testing.T) { r.testCookie(t, vip) })
			r.street.host.Sysctl("net.ipv4.tcp_syncookies", "1")
			t.Run("request", func(t *testing.T) { r.testRequest(t, vip) })
			t.Run("time wait", func(t *testing.T) { r.testTimeWait(t, vip) })
			t.Run("no row", func(t *testing.T) { r.testNoRow(t, vip) })
			t.Run("not to be judged", func(t *testing.T) { r.testUnjudged(t, vip) })
		})
	}
}

// testListen: that somebody listens is no reason to keep a packet; a SYN is.
func (r *second) testListen(t *testing.T, vip netip.Addr) {
	f := r.flow(vip)
	r.judge(t, f.segment(packet.SYN, 1, 0, ""), true)
	r.judge(t, f.segment(packet.ACK, 2, 77, ""), false)
	r.judge(t, f.segment(packet.ACK|packet.PSH, 2, 77, "data"), false)
	r.judge(t, f.segment(packet.ACK|packet.FIN, 2, 77, ""), false)
	r.judge(t, f.segment(packet.RST, 2, 0, ""), false)
	r.judge(t, f.segment(packet.RST|packet.ACK, 2, 77, ""), false)
	r.judge(t, f.quoted(77), false)
	if vip.Is6() { // a whole packet behind a fragment header
		r.judge(t, join(frame{ip(f.client, vip), packet.FragmentHeader{ID: 9}}, f.segment(packet.ACK, 2, 77, "data")[1:]), false)
	}
}

// quoted is an ICMP error about a segment that the VIP sent.
func (f *flow) quoted(seq uint32) frame {
	quote := packet.Quote(8, ip(f.vip, f.client), packet.TCPHeader{Src: 443, Dst: f.port, Seq: seq})
	if f.vip.Is4() {
		return frame{ip(f.client, f.vip), packet.ICMPv4Header{Type: 3, Code: 4, Rest: 1400}, quote}
	}
	return frame{ip(f.client, f.vip), packet.ICMPv6Header{Type: 2, Rest: 1400}, quote}
}

// testEstablished: everything of a connection that is here stays, also once one side
// has sent a FIN.
func (r *second) testEstablished(t *testing.T, vip netip.Addr) {
	f := r.flow(vip)
	f.open()
	conn := r.accept(t)
	for _, flags := range []uint8{packet.ACK, packet.ACK | packet.PSH, packet.ACK | packet.FIN, packet.RST} {
		r.judge(t, f.segment(flags, f.next, f.ack, "data"), true)
		r.judge(t, f.segment(flags, f.next+1<<30, 1, "out of its window"), true)
	}
	r.judge(t, f.quoted(f.ack), true)
	other := r.flow(vip)
	other.next, other.ack = f.next, f.ack
	r.judge(t, other.segment(packet.ACK, f.next, f.ack, "data"), false)

	_ = conn.(*net.TCPConn).CloseWrite()
	f.receive(packet.FIN)
	r.judge(t, f.segment(packet.ACK, f.next, f.ack-1, ""), true) // FIN_WAIT1
	f.send(packet.ACK, "")
	r.judge(t, f.segment(packet.ACK, f.next, f.ack, "more"), true) // FIN_WAIT2
	r.judge(t, f.quoted(f.ack), true)
}

// testCookie: the acknowledgement of a SYN cookie, which no socket remembers.
func (r *second) testCookie(t *testing.T, vip netip.Addr) {
	f := r.flow(vip)
	f.ask()
	r.judge(t, f.segment(packet.ACK, f.next, f.ack+1<<28, ""), false)
	r.judge(t, f.segment(packet.ACK, f.next+7, f.ack, ""), false)
	r.judge(t, f.segment(packet.RST|packet.ACK, f.next, f.ack, ""), false)
	r.judge(t, f.segment(packet.RST, f.next, 0, ""), false)
	other := r.flow(vip)
	r.judge(t, other.segment(packet.ACK, f.next, f.ack, ""), false)
	for _, g := range []*flow{f, other} {
		if noted, known := r.noted(g.key()); known {
			t.Fatalf("nobody has acknowledged a cookie, and the host remembers %+v", noted)
		}
	}
	r.judge(t, f.segment(packet.ACK, f.next, f.ack, ""), true)
	r.judge(t, f.segment(packet.ACK|packet.PSH, f.next, f.ack, "with data"), true)
	r.testBehindCookie(t, f)
	f.send(packet.ACK, "")
	r.accept(t)
	r.judge(t, f.segment(packet.ACK|packet.PSH, f.next, f.ack, "data"), true)
}

// testRequest: a connection that is being opened here is this one only if the client
// acknowledges this host's SYN-ACK.
func (r *second) testRequest(t *testing.T, vip netip.Addr) {
	f := r.flow(vip)
	f.ask()
	r.judge(t, f.segment(packet.ACK, f.next, f.ack, ""), true)
	r.judge(t, f.segment(packet.ACK|packet.PSH, f.next, f.ack, "with data"), true)
	r.judge(t, f.segment(packet.ACK, f.next, f.ack+1, ""), false)
	r.judge(t, f.segment(packet.ACK, f.next, f.ack-1, ""), false)
	r.judge(t, f.segment(packet.ACK|packet.PSH, f.next, 4711, "of another SYN-ACK"), false)
	r.judge(t, f.segment(packet.RST, f.next, 0, ""), true)
	r.judge(t, f.segment(packet.RST, f.next+99, 0, ""), false)
	r.judge(t, f.segment(packet.RST|packet.ACK, f.next, f.ack, ""), true)
	r.judge(t, f.segment(packet.RST|packet.ACK, f.next, f.ack+5, ""), false)
	r.judge(t, f.quoted(f.ack-1), true)
	r.judge(t, f.quoted(f.ack+5), false)
	f.send(packet.ACK, "")
	r.accept(t)
}

// testTimeWait: a connection that has ended here keeps what the client may still
// send of it, and no packet of a later one elsewhere.
func (r *second) testTimeWait(t *testing.T, vip netip.Addr) {
	f := r.flow(vip)
	f.open()
	_ = r.accept(t).Close()
	f.receive(packet.FIN)
	f.send(packet.ACK|packet.FIN, "")
	f.receive(packet.ACK) // of the FIN: from here on it is TIME_WAIT
	r.judge(t, f.segment(packet.ACK|packet.FIN, f.next-1, f.ack, ""), true)
	r.judge(t, f.segment(packet.ACK|packet.FIN, f.next-5, f.ack, "last"), true)
	r.judge(t, f.segment(packet.ACK, f.next-1, f.ack, ""), true)
	r.judge(t, f.segment(packet.ACK, f.next, f.ack, ""), true)
	r.judge(t, f.segment(packet.RST, f.next, 0, ""), true)
	r.judge(t, f.quoted(f.ack), false)
	r.judge(t, f.segment(packet.ACK, f.next-2, f.ack, ""), false)
	r.judge(t, f.segment(packet.ACK, f.next+1<<29, 77, "of a later one"), false)
	r.judge(t, f.segment(packet.ACK, f.next-1<<29, 77, "of an earlier one"), false)
}

// testNoRow: without candidates no other host might have the connection.
func (r *second) testNoRow(t *testing.T, vip netip.Addr) {
	inner := r.flow(vip).segment(packet.ACK, 2, 77, "data")
	for _, o := range outers() {
		for name, private := range map[string][]byte{
			"none": nil, "of another kind": {0x11, 1, 0, 0, 10, 0, 1, 12}, "of zeros": make([]byte, 124),
		} {
			r.check(t, outcome{o.wrap(o.from, o.to, private, inner), inner, bpfHostReasonHOST_DECAP_GUE, build(frame{ether}, inner)})
			if t.Failed() {
				t.Fatalf("over %v, private data %s", o.to, name)
			}
		}
	}
}

// testUnjudged: what cannot be told by sockets stays where it came.
func (r *second) testUnjudged(t *testing.T, vip netip.Addr) {
	f := r.flow(vip)
	tcp := f.segment(packet.ACK, 2, 77, "some data")[1:]
	if vip.Is4() {
		r.judge(t, join(frame{packet.IPv4Header{Src: f.client, Dst: vip, MF: true, ID: 9}}, tcp), true)
		r.judge(t, frame{ip(f.client, vip), packet.ICMPv4Header{Type: 3}, packet.Zeros(28)}, true)
		return
	}
	r.judge(t, frame{ip(f.client, vip), packet.ICMPv6Header{Type: 1}, packet.Zeros(48)}, true)
}
