package datapath

import (
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// sends runs a client's packet to the first service of tableOf through the program,
// and returns the next hop that it leaves to.
func (d *Datapath) sends(t *testing.T, flags uint8) (to model.MAC) {
	t.Helper()
	frame := build(ip(client4, d.table.Services[0].VIP), packet.TCPHeader{Src: clientPort, Dst: 80, Flags: flags}, packet.Text("client"))
	action, out, err := d.kernel.program.Test(frame)
	if err != nil || action != xdpRedirect {
		t.Fatalf("verdict %d, %v, want %d", action, err, xdpRedirect)
	}
	copy(to[:], out)
	return to
}

// A connection stays with its backend through changes of the ring that keep no log,
// and a restart, for as long as it is active; slots ask flow memory no longer than
// they must.
func TestSettle(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 3 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	onCPU(t, 0, func() { testSettle(t) })
}

func testSettle(t *testing.T) {
	d := openTest(t, model.Limits{})
	settling := func(want int, why string) {
		t.Helper()
		if got := statusOf(t, d).Flows.Settling; got != want {
			t.Errorf("%d slots are settling, want %d: %s", got, want, why)
		}
	}
	must(t, d.Set(tableOf(1, 3, 0)))
	settling(0, "the first ring")
	d.sends(t, packet.SYN)
	if got := statusOf(t, d).Flows.Remembered; got != 0 {
		t.Errorf("%d flows of settled slots are remembered", got)
	}

	must(t, d.Set(tableOf(1, 3, 1)))
	settling(1021, "every slot has another owner")
	first := d.sends(t, packet.SYN)
	must(t, d.Set(tableOf(1, 3, 2)))
	if to := d.sends(t, packet.ACK); to != first {
		t.Errorf("the connection went from %v to %v when the ring changed", first, to)
	}
	d.sweep()
	settling(1021, "one sweep may have missed a flow that moved")
	d.sweep()
	settling(1, "one flow is not its slot's owner's")
	must(t, d.Set(tableOf(1, 3, 2)))
	settling(1, "the same ring again")
	if status := statusOf(t, d).Flows; status.Remembered != 1 || status.Events[abi.FlowEventFLOW_INSERTED].Count != 1 {
		t.Errorf("status is %+v, want 1 flow", status)
	}

	must(t, d.Close())
	d = openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 3, 2)))
	settling(1, "after a restart")
	if to := d.sends(t, packet.ACK); to != first {
		t.Errorf("the connection went from %v to %v after a restart", first, to)
	}
	for i := range d.flows.Entries {
		d.flows.Entries[i].Seen -= 8000 // past the longest timeout
	}
	d.sweep()
	d.sweep()
	settling(0, "the flow has ended")
	if to := d.sends(t, packet.SYN); to == first {
		t.Errorf("a new connection went to %v, which does not own its slot", to)
	}
}

// A backend that goes down and comes back on this director takes no connection along
// that began on its backup in between.
func TestSettleOwnerTurns(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 3 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	onCPU(t, 0, func() { testSettleOwnerTurns(t) })
}

func testSettleOwnerTurns(t *testing.T) {
	d := openTest(t, model.Limits{})
	settling := func(want int, why string) {
		t.Helper()
		if got := statusOf(t, d).Flows.Settling; got != want {
			t.Errorf("%d slots are settling, want %d: %s", got, want, why)
		}
	}
	table := tableOf(1, 3, 0)
	must(t, d.Set(table))
	owner := d.sends(t, packet.SYN)
	position := slices.IndexFunc(d.services[keyOf(&table.Services[0])].order, func(b *backend) bool {
		return model.MAC(d.entries.Entries[b.index].Mac) == owner
	})
	is := func(state model.BackendState) {
		t.Helper()
		table := tableOf(1, 3, 0)
		table.Services[0].Backends[position].State = state
		must(t, d.Set(table))
	}
	own := 0
	for _, slot := range table.Services[0].Ring.Slots {
		if int(slot.Owner) == position {
			own++
		}
	}

	is(model.Down)
	settling(own, "the owner of these is down")
	backup := d.sends(t, packet.SYN)
	if backup == owner {
		t.Fatalf("the SYN went to %v, which is down", owner)
	}
	for range 3 {
		d.sweep()
	}
	settling(own, "as long as the owner is down")
	is(model.Active)
	if to := d.sends(t, packet.ACK); to != backup {
		t.Errorf("the connection went from %v to %v when the owner came back", backup, to)
	}
	d.sweep()
	d.sweep()
	settling(1, "one flow is the backup's")

	must(t, d.Close())
	d = openTest(t, model.Limits{})
	is(model.Active)
	if to := d.sends(t, packet.ACK); to != backup {
		t.Errorf("the connection went from %v to %v after a restart", backup, to)
	}
	d.sends(t, packet.RST)
	for i := range d.flows.Entries {
		d.flows.Entries[i].Seen -= 100 // past the timeout after a RST
	}
	d.sweep()
	d.sweep()
	settling(0, "the flow has ended")
	if to := d.sends(t, packet.SYN); to != owner {
		t.Errorf("a new connection went to %v, want its owner %v", to, owner)
	}
}

// A service may begin with backends that are down.
func TestSettleFirstRing(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for i := range 2 {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	table := func(owner model.BackendState) model.Table {
		table := tableOf(1, 2, 0)
		s := &table.Services[0]
		for i := range s.Ring.Slots {
			s.Ring.Slots[i] = model.Slot{Owner: 0, Next: 1}
		}
		s.Backends[0].State = owner
		return table
	}
	onCPU(t, 0, func() {
		d := openTest(t, model.Limits{})
		must(t, d.Set(table(model.Down)))
		backup := d.sends(t, packet.SYN)
		must(t, d.Set(table(model.Active)))
		if to := d.sends(t, packet.ACK); to != backup {
			t.Errorf("the connection went from %v to %v when its slot's owner came up", backup, to)
		}
	})
}

// Where slots change altogether, any flow may have been any backend's.
func TestSettleOtherSlots(t *testing.T) {
	t.Parallel()
	ring := func(slots int, affinity model.Affinity, mode model.Mode) []byte {
		s := model.TableService{Salt: 1, Affinity: affinity, Protocol: model.TCP,
			Backends: []model.TableBackend{{Mode: mode}, {Mode: mode}}, Ring: model.Ring{Slots: make([]model.Slot, slots)}}
		for i := range s.Ring.Slots {
			s.Ring.Slots[i].Next = model.NoBackend
		}
		image, err := buildRing(nil, &s, 1, []uint32{1, 2})
		must(t, err)
		return image
	}
	withBefore := func(mode model.Mode) []byte {
		s := model.TableService{Salt: 1, Protocol: model.TCP, Backends: []model.TableBackend{{Mode: mode}, {Mode: mode}},
			Ring:   model.Ring{Slots: []model.Slot{{Next: model.NoBackend}, {Next: 1}, {Next: model.ListFlag}}, Lists: []model.CandidateList{{Next: []uint32{1}, Oldest: []uint8{1, 0}}}},
			Before: &model.RingBefore{Affinity: model.AffinitySourceIP, Ring: model.Ring{Slots: []model.Slot{{Owner: 1, Next: model.NoBackend}, {Owner: model.NoBackend, Next: model.NoBackend}}}}}
		image, err := buildRing(nil, &s, 1, []uint32{1, 2})
		must(t, err)
		return image
	}
	settling := ring(5, 0, model.L2DSR)
	flagAllSettling(settling)
	for _, coming := range []struct {
		before []byte
		want   int
	}{{settling, 5}, {ring(5, 0, model.L2DSR), 0}} {
		gue := ring(5, 0, model.GUE)
		carryMemory(gue, coming.before)
		carrySettling(gue, coming.before)
		if got := countSettling(gue); got != coming.want {
			t.Errorf("in gue %d slots ask memory, want %d: those that did before", got, coming.want)
		}
	}
	for _, test := range []struct {
		name          string
		before, after []byte
		want          int
	}{
		{"nothing, but there is a ring before,", withBefore(model.L2DSR), withBefore(model.L2DSR), 2},
		{"nothing, but there is a ring before, in gue,", withBefore(model.GUE), withBefore(model.GUE), 2},
		{"the ring before is gone,", withBefore(model.L2DSR), ring(3, 0, model.L2DSR), 3},
		{"the ring before is gone, in gue,", withBefore(model.GUE), ring(3, 0, model.GUE), 0},
		{"nothing", ring(5, 0, model.L2DSR), ring(5, 0, model.L2DSR), 0},
		{"size", ring(5, 0, model.L2DSR), ring(7, 0, model.L2DSR), 7},
		{"affinity", ring(5, 0, model.L2DSR), ring(5, model.AffinitySourceIP, model.L2DSR), 5},
		{"gue has agents", ring(5, 0, model.GUE), ring(7, 0, model.GUE), 0},
	} {
		carrySettling(test.after, test.before)
		if got := countSettling(test.after); got != test.want {
			t.Errorf("%s changed: %d slots are settling, want %d", test.name, got, test.want)
		}
	}
}
