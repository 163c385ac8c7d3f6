package datapath

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// TestMovedNeighborIsTold: the director follows a next hop whose address another host takes over,
// and tells that, also when two hosts have the address in turn.
func TestMovedNeighborIsTold(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	backend, stranger := netip.MustParseAddr("10.0.0.11"), model.MAC{2, 0, 0, 0, 0, 0x66}
	addNeighbor(t, backend)
	d := openTest(t, model.Limits{})
	table := tableOf(2, 1, 0)
	must(t, d.Set(table))
	sends := func(to model.MAC) {
		t.Helper()
		eventually(t, "packets go to "+to.String(), func() bool { return statusOf(t, d).Services[0].Backends[0].NextHop == to })
	}
	sends(neighborMAC(backend))
	if got := d.Moved(9); len(got) > 0 {
		t.Fatalf("before anything has moved it is told that %+v have", got)
	}
	move := func(to model.MAC) {
		t.Helper()
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: wire(t).Attrs().Index, IP: backend.AsSlice(), HardwareAddr: net.HardwareAddr(to[:]), State: netlink.NUD_PERMANENT}))
		sends(to)
	}
	told := func(now, before model.MAC, inTurn bool) {
		t.Helper()
		got := d.Moved(9)
		if len(got) != 1 || got[0].Address != backend || got[0].Interface != "wire0" || got[0].Now != now || got[0].Before != before || got[0].InTurn != inTurn {
			t.Fatalf("it is told that %+v has moved, want %v on wire0 from %v to %v, in turn: %v", got, backend, before, now, inTurn)
		}
		want := []string{table.Services[0].Name + "/" + table.Services[0].Backends[0].Name, table.Services[1].Name + "/" + table.Services[1].Backends[0].Name}
		if slices.Sort(got[0].Backends); !slices.Equal(got[0].Backends, want) {
			t.Errorf("it is told that %v are reached by it, want %v", got[0].Backends, want)
		}
	}
	move(stranger)
	told(stranger, neighborMAC(backend), false)
	for range 2 {
		move(neighborMAC(backend))
		told(stranger, neighborMAC(backend), true)
		move(stranger)
		told(stranger, neighborMAC(backend), true)
	}
	if got := d.Moved(0); len(got) > 0 {
		t.Errorf("none should be told, and %+v are", got)
	}
}

// TestMovesAreForgotten: a move is told for a while, and hosts that are no next hops any more take no
// memory.
func TestMovesAreForgotten(t *testing.T) {
	t.Parallel()
	m, now := movements{of: map[neighbor]movement{}}, time.Now()
	n := neighbor{1, netip.MustParseAddr("10.0.0.11")}
	m.see(n, model.MAC{2, 1}, now)
	m.see(n, model.MAC{}, now) // it does not answer
	m.see(n, model.MAC{2, 2}, now)
	if got := m.recent(now.Add(movedHolds - 1)); len(got) != 1 || got[n].before != (model.MAC{2, 1}) {
		t.Errorf("the move of a host that was away is told as %+v", got)
	}
	if got := m.recent(now.Add(movedHolds)); len(got) > 0 {
		t.Errorf("after %v it is still told that %+v have moved", movedHolds, got)
	}
	m.see(n, model.MAC{2, 1}, now.Add(movedHolds))
	if got := m.recent(now.Add(movedHolds)); got[n].returned {
		t.Errorf("a host that came back after %v is taken for two", movedHolds)
	}
	for i := range 5000 {
		m.see(neighbor{2 + i, n.address}, model.MAC{2, 1}, now)
		m.leaveOut(map[neighbor]bool{n: true})
	}
	if _, stays := m.of[n]; len(m.of) > 2000 || !stays {
		t.Errorf("%d hosts are kept, of one next hop (there: %v)", len(m.of), stays)
	}
}
