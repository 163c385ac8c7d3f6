package datapath

import (
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// tieredTable is a service in l2dsr with backends 0 and 1 in tier 0, 2 and 3 in tier 1, of which one tier is active.
func tieredTable(active uint8) model.Table {
	t := tableOf(1, 4, 0)
	s := &t.Services[0]
	var first, second model.Ring
	for k := range uint32(1021) {
		first.Slots = append(first.Slots, model.Slot{Owner: k % 2, Next: 1 - k%2})
		second.Slots = append(second.Slots, model.Slot{Owner: 2 + k%2, Next: model.ListFlag | k%2})
	}
	for k := range uint32(2) { // the oldest owner is that of tier 0
		second.Lists = append(second.Lists, model.CandidateList{Next: []uint32{3 - k, k, 1 - k}, Oldest: []uint8{2, 0, 1, 3}})
	}
	s.Backends[2].Tier, s.Backends[3].Tier = 1, 1
	s.Tiers = []model.TierRing{{Ring: first}, {Ring: second}}
	s.Use(active)
	return t
}

// New connections go to the tier that is active, open ones of both stay, and none of it needs memory that is not there.
func TestTiers(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 4 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	onCPU(t, 0, func() { testTiers(t) })
}

func testTiers(t *testing.T) {
	table := tieredTable(0)
	limits := model.Limits{Services: 1, RingMemory: ringBytes(&table.Services[0])} // for no third ring
	d := openTest(t, limits)
	sends := func(port uint16, flags uint8) int {
		t.Helper()
		frame := build(ip(client4, d.table.Services[0].VIP), packet.TCPHeader{Src: port, Dst: 80, Flags: flags}, packet.Text("client"))
		action, out, err := d.kernel.program.Test(frame)
		if err != nil || action != xdpRedirect {
			t.Fatalf("verdict %d, %v, want %d", action, err, xdpRedirect)
		}
		return slices.IndexFunc(d.table.Services[0].Backends, func(b model.TableBackend) bool {
			mac := neighborMAC(b.Address)
			return slices.Equal(mac[:], out[:6])
		})
	}
	tierOf := func(port uint16, flags uint8, want int, why string) (to int) {
		t.Helper()
		if to = sends(port, flags); to/2 != want {
			t.Errorf("%s: port %d goes to backend %d, want one of tier %d", why, port, to, want)
		}
		return to
	}
	goesTo := func(port uint16, want int, why string) {
		t.Helper()
		if to := sends(port, packet.ACK); to != want {
			t.Errorf("%s: port %d goes to backend %d, want %d", why, port, to, want)
		}
	}
	use := func(tier uint8) { t.Helper(); must(t, d.Set(tieredTable(tier))) }

	use(0)
	before := tierOf(1000, packet.SYN, 0, "the first tier")
	if got := statusOf(t, d); got.Flows.Remembered != 0 || got.Flows.Settling != 0 {
		t.Errorf("the first tier alone remembers %+v", got.Flows)
	}
	use(1)
	down := tierOf(2000, packet.SYN, 1, "a new connection, tier 1 is active")
	goesTo(1000, before, "an open connection of tier 0, which nobody remembered")
	use(0)
	tierOf(3000, packet.SYN, 0, "tier 0 is active again")
	goesTo(2000, down, "an open connection of tier 1")
	goesTo(1000, before, "an open connection of tier 0")
	if got := statusOf(t, d); got.Flows.Settling != 1021 || got.RingMemory != ringBytes(&table.Services[0]) {
		t.Errorf("%d slots settle, and rings take %d bytes", got.Flows.Settling, got.RingMemory)
	}
	d.sweep()
	d.sweep()
	if got := statusOf(t, d).Flows.Settling; got != 1 {
		t.Errorf("%d slots settle, want that of the one connection of tier 1", got)
	}
	goesTo(2000, down, "after two sweeps")
	for range 6 { // in turn, as fast as it can
		use(1)
		tierOf(4000, packet.SYN|packet.ECE, 1, "again tier 1")
		use(0)
		goesTo(2000, down, "again tier 0")
	}

	// Another director has placed a connection on tier 1.
	s := d.services[keyOf(&d.table.Services[0])]
	flow := model.RememberedFlow{Service: s.key.id(), Backend: netip.AddrPortFrom(d.table.Services[0].Backends[3].Address, 0), Source: netip.AddrPortFrom(client4, 5000), Port: 80,
		Class: model.SustainedFlow, State: model.FlowOpen}
	must(t, d.Remember([]model.RememberedFlow{flow}))
	goesTo(5000, 3, "as another director has shared")

	use(1)
	ring := s.ring
	must(t, d.Close())
	d = openTest(t, limits)
	must(t, d.Set(tieredTable(1)))
	if again := d.services[keyOf(&d.table.Services[0])]; again.ring != ring || again.reserve.lines != ring.lines {
		t.Errorf("the ring was at %v, and after a restart at %v, the next one's place is %v", ring, again.ring, again.reserve)
	}
	tierOf(6000, packet.SYN, 1, "after a restart")
	goesTo(2000, down, "after a restart")
	goesTo(1000, before, "after a restart")

	// Without tiers the place is free again.
	plain := tieredTable(0)
	plain.Services[0].Tiers = nil
	must(t, d.Set(plain))
	if got := d.services[keyOf(&plain.Services[0])]; got.reserve.lines != 0 {
		t.Errorf("a service without tiers keeps %v for the next ring", got.reserve)
	}
	goesTo(2000, down, "the tiers are gone, and the backend is not")
}

// A service without tiers has the ring that it had before there were any, byte for byte, and no further memory.
func TestRingOfOneTier(t *testing.T) {
	plain, tiered := tieredTable(0), tieredTable(0)
	plain.Services[0].Tiers = nil
	index := []uint32{1, 2, 3, 4}
	a, err := buildRing(nil, &plain.Services[0], 7, index)
	must(t, err)
	b, err := buildRing(nil, &tiered.Services[0], 7, index)
	must(t, err)
	if lines := firstOwners(&plain.Services[0]) + ownerLines(&plain.Services[0]); len(a) != lines*64 || ringBytes(&plain.Services[0]) != uint64(64*firstOwners(&plain.Services[0])) {
		t.Errorf("a ring of one tier has %d bytes", len(a))
	}
	_, was := ringSlots(a)
	_, is := ringSlots(b)
	if is.Lines <= was.Lines { // the other tier's ring has lists
		t.Errorf("the place of a ring with tiers has %d lines, without %d", is.Lines, was.Lines)
	}
	is.Lines = was.Lines
	if !slices.Equal(a, b[:len(a)]) {
		t.Error("the first tier's ring is another one than without tiers")
	}
}
