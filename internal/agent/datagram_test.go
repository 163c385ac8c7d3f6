package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/lab/packet"
)

// claimOf10 is what a host says that has kept a datagram ten units of time ago.
const (
	claimOf10 = 10
	old       = 10 * time.Second
)

// visits are the steps from host to host that are up, with two others in the row.
func visits(o rowTunnel) []step {
	const gue, fresh, on = bpfHostReasonHOST_DECAP_GUE, bpfHostReasonHOST_DECAP_NEW_FLOW, bpfHostReasonHOST_PASSED_ON
	a, b := o.hops[0], o.hops[1]
	row := walked{hops: []netip.Addr{a, b}}
	at := func(next, claim int) walked { w := row; w.next, w.claim = next, claim; return w }
	return []step{
		{name: "first, unknown", age: unknown, in: row, reason: on, to: a, out: at(1, 0).first(o.to)},
		{name: "first, kept just now", age: 0, in: row, reason: gue},
		{name: "first, kept a while ago", age: old, in: row, reason: on, to: a, out: at(1, claimOf10).first(o.to)},
		{name: "first, kept nearly too long ago", age: 295 * time.Second, in: row, reason: on, to: a, out: at(1, 254).first(o.to)},
		{name: "first, kept too long ago", age: 301 * time.Second, in: row, reason: on, to: a, out: at(1, 0).first(o.to)},
		{name: "second, unknown", age: unknown, from: a, in: at(1, 0), reason: on, to: b, out: at(2, 0)},
		{name: "second, unknown, the first has it", age: unknown, from: a, in: at(1, 7), reason: on, to: b, out: at(2, 7)},
		{name: "second, kept just now", age: 0, from: a, in: at(1, 7), reason: gue},
		{name: "second, has it alone", age: old, from: a, in: at(1, 0), reason: on, to: b, out: at(2, claimOf10).first(o.to)},
		{name: "second, has an older one", age: old, from: a, in: at(1, 5), reason: on, to: b, out: at(2, 5)},
		{name: "second, has one as old", age: old, from: a, in: at(1, claimOf10), reason: on, to: b, out: at(2, claimOf10)},
		{name: "second, has a younger one", age: old, from: a, in: at(1, 20), reason: on, to: b, out: at(2, claimOf10).first(o.to)},
		{name: "last, nobody has it", age: unknown, from: b, in: at(2, 0), reason: on, to: a, out: at(3, 0)},
		{name: "last, the first has it", age: unknown, from: b, in: at(2, 5), reason: on, to: a, out: at(3, 5)},
		{name: "last, has it alone", age: old, from: b, in: at(2, 0), reason: gue},
		{name: "last, has an older one", age: old, from: b, in: at(2, 5), reason: on, to: a, out: at(3, 5)},
		{name: "last, is the first too", age: unknown, from: b, in: at(2, 0).first(o.to), reason: fresh},
		{name: "last, is the first too and has it", age: old, from: b, in: at(2, claimOf10).first(o.to), reason: gue},
		{name: "end, nobody had it", age: unknown, from: b, in: at(3, 0), reason: fresh},
		{name: "end, has it", age: old, from: b, in: at(3, claimOf10), reason: gue},
		{name: "end, has had it", age: 301 * time.Second, from: b, in: at(3, 0), reason: fresh},
		{name: "relay", age: unknown, in: at(0, 255), reason: on, to: a, out: at(3, 255)},
		{name: "relay, kept just now", age: 0, in: at(0, 255), reason: on, to: a, out: at(3, 255)},
		{name: "relay to this host", age: unknown, in: walked{claim: 255, hops: []netip.Addr{o.to}}, reason: gue},
		{name: "end of a relay", age: unknown, from: b, in: at(3, 255), reason: fresh},
		{name: "all are this host", age: unknown, in: walked{hops: []netip.Addr{o.to, o.to}}, reason: fresh},
		{name: "all are this host, which has it", age: old, in: walked{hops: []netip.Addr{o.to, o.to}}, reason: gue},
		{name: "next is this host too", age: unknown, in: walked{hops: []netip.Addr{o.to, b}}, reason: on, to: b,
			out: walked{next: 2, hops: []netip.Addr{o.to, b}}},
	}
}

// questions are the steps when one or both of the others are down for the director.
func questions(o rowTunnel) []step {
	const gue, fresh, on = bpfHostReasonHOST_DECAP_GUE, bpfHostReasonHOST_DECAP_NEW_FLOW, bpfHostReasonHOST_PASSED_ON
	const ms, s = uint64(time.Millisecond), uint64(time.Second)
	a, b := o.hops[0], o.hops[1]
	at := func(next, down, claim int) walked {
		return walked{next: next, down: down, claim: claim, hops: []netip.Addr{a, b}}
	}
	one := func(host netip.Addr, since, last, open uint64) map[netip.Addr]bpfHostQuestion {
		return map[netip.Addr]bpfHostQuestion{host: {Since: since, Last: last, Open: open}}
	}
	return []step{
		{name: "first, the other comes before who is down", age: unknown, in: at(0, 1, 0), reason: on, to: a, out: at(1, 1, 0).first(o.to)},
		{name: "first, all are down", age: unknown, in: at(0, 2, 0), reason: on, to: a, out: at(1, 2, 0).first(o.to)},
		{name: "first, all are down, kept just now", age: 0, in: at(0, 2, 0), reason: gue},
		{name: "first, all are down, kept a while ago", age: old, in: at(0, 2, 0), reason: gue},
		{name: "last that is up", age: unknown, from: a, in: at(1, 1, 0), reason: on, to: a, out: at(1|rowReturned, 1, 0)},
		{name: "last that is up, has it", age: old, from: a, in: at(1, 1, 0), reason: gue},
		{name: "last that is up, the first has it", age: unknown, from: a, in: at(1, 1, 9), reason: on, to: a, out: at(3, 1, 9)},
		{name: "first again", age: unknown, from: a, in: at(1|rowReturned, 1, 0).first(o.to), reason: on, to: b, out: at(2, 1, 0).first(o.to)},
		{name: "first again, has it by now", age: 0, from: a, in: at(1|rowReturned, 1, 0).first(o.to), reason: gue},
		{name: "asked, unknown", age: unknown, from: a, in: at(2, 1, 0), reason: on, to: a, out: at(2|rowReturned, 1, 0)},
		{name: "asked, has it", age: old, from: a, in: at(2, 1, 0), reason: on, to: a, out: at(2|rowReturned, 1, 1)},
		{name: "asked, has kept it just now", age: 0, from: a, in: at(2, 1, 0), reason: on, to: a, out: at(2|rowReturned, 1, 1)},
		{name: "asked, has had it", age: 301 * time.Second, from: a, in: at(2, 1, 0), reason: on, to: a, out: at(2|rowReturned, 1, 0)},
		{name: "who is down has it", age: unknown, from: b, in: at(2|rowReturned, 1, 1).first(o.to), reason: on, to: b, out: at(3, 1, 1).first(o.to)},
		{name: "who is down does not have it", age: unknown, from: b, in: at(2|rowReturned, 1, 0).first(o.to), reason: fresh},
		{name: "the first of two does not have it", age: unknown, from: a, in: at(1|rowReturned, 2, 0).first(o.to), reason: on, to: b, out: at(2, 2, 0).first(o.to)},
		{name: "who is down gets its own", age: old, from: a, in: at(3, 1, 1), reason: gue},

		{name: "answered before", age: unknown, in: at(0, 2, 0), asked: one(a, 10*s, 1*s, 0), reason: on, to: a, out: at(1, 2, 0).first(o.to)},
		{name: "asked before", age: unknown, in: at(0, 2, 0), asked: one(a, 10*s, 1*ms, 1*ms), reason: on, to: a, out: at(1, 2, 0).first(o.to)},
		{name: "does not answer", age: unknown, in: at(0, 2, 0), asked: one(a, 10*s, 1*ms, 600*ms), reason: on, to: b, out: at(2, 2, 0).first(o.to)},
		{name: "nobody answers", age: unknown, in: at(0, 2, 0), reason: fresh,
			asked: map[netip.Addr]bpfHostQuestion{a: {Since: s, Last: s, Open: s}, b: {Since: s, Last: s, Open: 299 * s}}},
		{name: "has not answered for long", age: unknown, in: at(0, 2, 0), asked: one(a, 400*s, 1*ms, 301*s), reason: on, to: a, out: at(1, 2, 0).first(o.to)},
		{name: "is down for long", age: unknown, in: at(0, 2, 0), asked: one(a, 31*s, 1*s, 0), reason: on, to: b, out: at(2, 2, 0).first(o.to)},
		{name: "was down for long", age: unknown, in: at(0, 2, 0), asked: one(a, 31*s, 6*s, 0), reason: on, to: a, out: at(1, 2, 0).first(o.to)},
		{name: "its answer", age: unknown, from: b, in: at(2|rowReturned, 1, 0).first(o.to), asked: one(b, 10*s, 600*ms, 600*ms), reason: fresh, noticed: true},
		{name: "its question", age: old, from: b, in: at(1, 0, 1), asked: one(b, 10*s, 600*ms, 600*ms), reason: on, to: b, out: at(2, 0, 1), noticed: true},
	}
}

// TestDatagrams is the table by which hosts agree whose a datagram is. Addresses of rows
// are those of the outer header's family.
func TestDatagrams(t *testing.T) {
	r := newSecond(t)
	for _, vip := range []netip.Addr{vip4, vip6} {
		r.serveDatagrams(t, vip)
		for _, o := range outers() {
			for _, s := range slices.Concat(visits(o), questions(o)) {
				t.Run(fmt.Sprintf("%v, over %v, checksum %v, %s", vip, o.to, !o.noChecksum, s.name), func(t *testing.T) {
					f := r.talk(vip)
					r.walk(t, o, f, f.datagram(), s)
				})
			}
		}
	}
}

// serveDatagrams lets somebody answer at a VIP.
func (r *second) serveDatagrams(t *testing.T, vip netip.Addr) (stop func()) {
	t.Helper()
	conn, err := r.street.host.ListenPacket("udp", netip.AddrPortFrom(vip, talkPort).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return func() { _ = conn.Close() }
}

// TestDatagramErrors: an ICMP error about a flow is asked for as its datagrams are, and
// proves nothing.
func TestDatagramErrors(t *testing.T) {
	r := newSecond(t)
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, o := range outers() {
			for _, s := range visits(o) {
				if s.reason == bpfHostReasonHOST_DECAP_NEW_FLOW {
					s.reason = bpfHostReasonHOST_DECAP_LAST_RESORT
				}
				f := r.talk(vip)
				r.walk(t, o, f, f.refused(), s)
				f.sctp = true
				r.walk(t, o, f, f.refused(), s)
			}
		}
	}
}

// TestDatagramsWithoutServer: a host that a director sees down gives up its flows if no
// socket answers their datagrams, or if its sockets cannot be seen.
func TestDatagramsWithoutServer(t *testing.T) {
	r := newSecond(t)
	o := outers()[0]
	asked := step{age: old, from: o.hops[0], in: walked{next: 2, down: 1, hops: o.hops}, reason: bpfHostReasonHOST_PASSED_ON,
		to: o.hops[0], out: walked{next: 2 | rowReturned, down: 1, hops: o.hops}}
	for _, vip := range []netip.Addr{vip4, vip6} {
		f := r.talk(vip)
		asked.name = "nobody serves"
		r.walk(t, o, f, f.datagram(), asked)
		stop := r.serveDatagrams(t, vip)
		yes := asked
		yes.name, yes.out.claim = "somebody serves", 1
		r.walk(t, o, f, f.datagram(), yes)
		stop()
	}
	p := r.plan
	p.keepsAll = true
	tables, err := newTables(p, nil, nil, r.Services.MaxEntries())
	if err != nil {
		t.Fatal(err)
	}
	if err := tables.put(&r.bpfMaps); err != nil {
		t.Fatal(err)
	}
	f := r.talk(vip4)
	r.serveDatagrams(t, vip4)
	asked.name = "sockets are elsewhere"
	r.walk(t, o, f, f.datagram(), asked)
	for _, s := range visits(o) {
		r.walk(t, o, f, f.datagram(), s) // whose datagram it is, no socket says
	}
}

// TestDatagramRows: which rows are not followed, and what is remembered without one.
func TestDatagramRows(t *testing.T) {
	r := newSecond(t)
	for _, o := range outers() {
		good := walked{hops: o.hops}.private()
		edit := func(at int, to byte) []byte {
			b := slices.Clone(good)
			b[at] = to
			return b
		}
		f := r.talk(vip4)
		up := build(frame{ether}, f.datagram())
		for _, test := range []struct {
			name    string
			private []byte
			reason  bpfHostReason
		}{
			{"none", nil, bpfHostReasonHOST_DECAP_GUE},
			{"of another kind", []byte{0x11, 2, 0, 0, 10, 0, 1, 12}, bpfHostReasonHOST_DECAP_GUE},
			{"no hosts", edit(1, 0)[:4], bpfHostReasonHOST_DROP_ROW_MALFORMED},
			{"too few hosts", edit(1, 1), bpfHostReasonHOST_DROP_ROW_MALFORMED},
			{"too many hosts", edit(1, 3), bpfHostReasonHOST_DROP_ROW_MALFORMED},
			{"far too many hosts", edit(1, 15), bpfHostReasonHOST_DROP_ROW_MALFORMED},
			{"more are down than there are", edit(1, 3<<4|2), bpfHostReasonHOST_DROP_ROW_MALFORMED},
			{"next beyond the end", edit(2, 4), bpfHostReasonHOST_DROP_ROW_MALFORMED},
			{"next beyond the end, returned", edit(2, 4|rowReturned), bpfHostReasonHOST_DROP_ROW_MALFORMED},
			{"cut short", good[:len(good)-4], bpfHostReasonHOST_DROP_ROW_MALFORMED},
			{"longer than its count", append(slices.Clone(good), 0, 0, 0, 0), bpfHostReasonHOST_DROP_ROW_MALFORMED},
		} {
			for _, h := range r.hooks() {
				r.remember(t, f, unknown)
				in := o.wrap(o.from, o.to, test.private, f.datagram())
				before := r.counts(t)
				verdict, out := run(t, h.program, in, nil)
				kept := test.reason == bpfHostReasonHOST_DECAP_GUE
				if want := map[bool]uint32{true: h.up, false: h.drop}[kept]; verdict != want {
					t.Errorf("row %s, %s: verdict %d, want %d", test.name, h.name, verdict, want)
				}
				if kept {
					packet.Equal(t, out, up)
				}
				if got := r.remembered(f) > 0; got != kept {
					t.Errorf("row %s, %s: remembered: %v, want %v", test.name, h.name, got, kept)
				}
				service, length := "", 0
				if kept {
					service, length = "talk4", len(up)-14
				}
				checkCounts(t, before, r.counts(t), test.reason, len(in)-14, service, length)
			}
		}
	}
}

// TestFragmentsOfDatagrams stay where they come, and say nothing about their flow.
func TestFragmentsOfDatagrams(t *testing.T) {
	r := newSecond(t)
	o, f := outers()[0], r.talk(vip4)
	first := frame{packet.IPv4Header{Src: f.client, Dst: f.vip, MF: true, ID: 9}, packet.UDPHeader{Src: f.port, Dst: talkPort}, packet.Zeros(16)}
	for _, h := range r.hooks() {
		verdict, _ := run(t, h.program, o.wrap(o.from, o.to, walked{hops: o.hops}.private(), first), nil)
		if verdict != h.up {
			t.Errorf("%s: verdict %d, want %d", h.name, verdict, h.up)
		}
		if r.remembered(f) > 0 {
			t.Errorf("%s: the flow is remembered", h.name)
		}
	}
}

// TestFlowsAreBounded: as many flows as there is room for, and those that go on stay.
func TestFlowsAreBounded(t *testing.T) {
	r := newSecond(t)
	o, steady := outers()[0], r.talk(vip4)
	send := func(f talk) { run(t, r.HostXdp, o.wrap(o.from, o.to, nil, f.datagram()), nil) }
	var last talk
	for i := range 8 * testFlows {
		last = steady
		last.client, last.port = netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 9
		send(last)
		send(steady)
	}
	if r.remembered(steady) == 0 {
		t.Error("a flow that goes on was forgotten")
	}
	if r.remembered(last) == 0 {
		t.Error("the youngest flow was forgotten")
	}
	n, key, fresh, room := 0, bpfHostFlow{}, bpfHostFresh{}, int(freshFlows(testFlows))
	for entries := r.UdpFresh.Iterate(); entries.Next(&key, &fresh); {
		n++
	}
	if n > room || n < room/4 {
		t.Errorf("%d flows are remembered, want up to %d", n, room)
	}
}

// TestDatagramServersInNamespaces: a server that answers datagrams in a container is
// found as its connections are.
func TestDatagramServersInNamespaces(t *testing.T) {
	s := newStreet(t, true)
	r := &second{testHost: newTestHost(t), wire: s.wire(t)}
	container, o := s.container(), outers()[0]
	names := []string{s.lab.Host("empty1").Namespace(), s.lab.Host("empty2").Namespace(), container.Namespace()}
	for _, vip := range []netip.Addr{vip4, vip6} {
		conn, err := container.ListenPacket("udp", netip.AddrPortFrom(vip, talkPort).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		f := r.talk(vip)
		for n, claim := range map[int]int{0: 0, 2: 0, 3: 1} {
			r.lookAt(t, names[:n]...)
			r.walk(t, o, f, f.datagram(), step{name: fmt.Sprintf("asked, with %d namespaces", n), age: old, from: o.hops[0],
				in: walked{next: 2, down: 1, hops: o.hops}, reason: bpfHostReasonHOST_PASSED_ON,
				to: o.hops[0], out: walked{next: 2 | rowReturned, down: 1, claim: claim, hops: o.hops}})
		}
	}
}
