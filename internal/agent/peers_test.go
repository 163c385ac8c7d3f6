package agent

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/lab/packet"

	"weir.io/weir/internal/contents"
)

// TestUnknownHops: whatever a row says, a packet goes on to backends of its service alone. All
// three kinds of rows, of senders that the host believes.
func TestUnknownHops(t *testing.T) {
	const drop = bpfHostReasonHOST_DROP_UNKNOWN_HOP
	r := newSecond(t)
	for _, o := range outers() {
		victim := stranger4
		if o.to.Is6() {
			victim = stranger6
		}
		a := o.hops[0]
		segment := r.flow(vip4).segment(packet.ACK, 2, 77, "data")
		for name, row := range map[string][]byte{
			"only hop": row(0, victim), "first hop": row(0, victim, a), "second hop": row(1, a, victim), "behind this host": row(0, o.to, victim), "a director": row(0, o.from),
		} {
			t.Run("segment, "+name, func(t *testing.T) {
				r.check(t, outcome{o.wrap(o.from, o.to, row, segment), segment, drop, nil})
			})
		}
		f := r.talk(vip4)
		for _, s := range []step{
			{name: "to the first", age: unknown, in: walked{hops: []netip.Addr{victim, a}}, reason: drop},
			{name: "to the second", age: unknown, from: a, in: walked{next: 1, hops: []netip.Addr{a, victim}}, reason: drop},
			{name: "back to the first", age: unknown, from: a, in: walked{next: 2, hops: []netip.Addr{victim, a}}, reason: drop},
			{name: "the first has it", age: unknown, from: a, in: walked{next: 2, claim: 7, hops: []netip.Addr{victim, a}}, reason: drop},
			{name: "answer to the first", age: unknown, from: a, in: walked{next: 2, down: 1, hops: []netip.Addr{victim, a}}, reason: drop},
			{name: "question", age: unknown, in: walked{down: 1, hops: []netip.Addr{victim}}, reason: drop},
			{name: "relay", age: unknown, in: walked{claim: 255, hops: []netip.Addr{victim, a}}, reason: drop},
			{name: "to a director that asks for it", age: unknown, in: walked{next: 1 | rowReturned, claim: 1, hops: []netip.Addr{a}}, reason: drop},
		} {
			s.name = "datagram " + s.name
			r.walk(t, o, f, f.datagram(), s)
		}
		if n := entries(t, r.Questions); n != 0 {
			t.Errorf("%d hosts are remembered because rows of unknown ones have come", n)
		}
	}
}

// TestFormerPeers: a backend that is removed is no sender any more, and goes on as a hop for a
// while, because directors may not know yet.
func TestFormerPeers(t *testing.T) {
	const service, other = uint32(7), uint32(8)
	h := newTestHost(t)
	empty(t, h.Peers)
	peer := func(service uint32, at netip.Addr) bpfHostPeer {
		return bpfHostPeer{Service: service, Address: address(at)}
	}
	stays, goes, with := peer(service, peer4), peer(service, third4), peer(other, third4)
	services := map[uint32]bpfHostService{service: {}, other: {}}
	former := formerPeers{}
	for _, step := range []struct {
		name   string
		at     time.Duration
		wanted []bpfHostPeer
		gone   uint32 // a service that is not here any more
		want   map[bpfHostPeer]uint32
	}{
		{"both are backends", 0, []bpfHostPeer{stays, goes, with}, 0, map[bpfHostPeer]uint32{stays: currentPeer, goes: currentPeer, with: currentPeer}},
		{"one goes", time.Second, []bpfHostPeer{stays, with}, 0, map[bpfHostPeer]uint32{stays: currentPeer, goes: formerPeer, with: currentPeer}},
		{"it comes back", time.Minute, []bpfHostPeer{stays, goes, with}, 0, map[bpfHostPeer]uint32{stays: currentPeer, goes: currentPeer, with: currentPeer}},
		{"it goes again", 2 * time.Minute, []bpfHostPeer{stays, with}, 0, map[bpfHostPeer]uint32{stays: currentPeer, goes: formerPeer, with: currentPeer}},
		{"not long enough ago", 2*time.Minute + peerGrace - 1, []bpfHostPeer{stays, with}, 0, map[bpfHostPeer]uint32{stays: currentPeer, goes: formerPeer, with: currentPeer}},
		{"long enough ago", 2*time.Minute + peerGrace, []bpfHostPeer{stays, with}, 0, map[bpfHostPeer]uint32{stays: currentPeer, with: currentPeer}},
		{"a service goes", time.Hour, []bpfHostPeer{stays}, other, map[bpfHostPeer]uint32{stays: currentPeer}},
	} {
		wanted := map[bpfHostPeer]uint32{}
		for _, p := range step.wanted {
			wanted[p] = currentPeer
		}
		here := maps.Clone(services)
		delete(here, step.gone)
		if err := contents.Put(h.Peers, wanted); err != nil {
			t.Fatal(err)
		}
		if err := former.retire(h.Peers, wanted, here, step.at); err != nil {
			t.Fatal(err)
		}
		have, err := readAll[bpfHostPeer](h.Peers)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(have, step.want) {
			t.Errorf("%s: the peers are %v, want %v", step.name, have, step.want)
		}
	}
	if len(former) != 0 {
		t.Errorf("%d former backends are still noted", len(former))
	}
}
