package datapath

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/nexthop"
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
	if got := statusOf(t, d).HopsMoved; got != 1 {
		t.Errorf("after a move of a next hop of two backends %d are counted", got)
	}
	for range 2 {
		move(neighborMAC(backend))
		told(stranger, neighborMAC(backend), true)
		move(stranger)
		told(stranger, neighborMAC(backend), true)
	}
	if got := d.Moved(0); len(got) > 0 {
		t.Errorf("none should be told, and %+v are", got)
	}
	if got := statusOf(t, d).HopsMoved; got != 5 {
		t.Errorf("after five moves of a next hop %d are counted", got)
	}
}

// TestNewNextHopHasNotMoved: an address that no backend is reached by any more may become another
// host's, and then a backend's.
func TestNewNextHopHasNotMoved(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	backend, other := netip.MustParseAddr("10.0.0.11"), model.MAC{2, 0, 0, 0, 0, 0x66}
	addNeighbor(t, backend)
	d := openTest(t, model.Limits{})
	sends := func(to model.MAC) {
		t.Helper()
		eventually(t, "packets go to "+to.String(), func() bool { return statusOf(t, d).Services[0].Backends[0].NextHop == to })
	}
	table := tableOf(1, 1, 0)
	must(t, d.Set(table))
	sends(neighborMAC(backend))
	must(t, d.Set(model.Table{Interfaces: table.Interfaces}))
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: wire(t).Attrs().Index, IP: backend.AsSlice(), HardwareAddr: net.HardwareAddr(other[:]), State: netlink.NUD_PERMANENT}))
	eventually(t, "the director knows the other host", func() bool {
		hop, _ := d.hops.Imagine(model.TableBackend{Address: backend, Mode: model.IPIP}, []string{"wire0"})
		return hop.MAC == other
	})
	must(t, d.Set(table))
	sends(other)
	if got := d.Moved(9); len(got) > 0 {
		t.Errorf("it is told that %+v have moved", got)
	}
}

// TestMovesAreForgotten: a move is told for a while, and takes no memory for long.
func TestMovesAreForgotten(t *testing.T) {
	t.Parallel()
	m, now := movements{}, time.Now()
	n := nexthop.Neighbor{Ifindex: 1, Address: netip.MustParseAddr("10.0.0.11")}
	b, second := &backend{}, &backend{}
	at := func(last byte, at time.Time) {
		for _, of := range []*backend{b, second} {
			hop := nexthop.Hop{Via: n}
			if last > 0 {
				hop.MAC = model.MAC{2, last}
			}
			m.follow(of, hop, at)
		}
	}
	at(1, now)
	at(0, now)                      // it does not answer
	m.follow(b, nexthop.Hop{}, now) // its link is down
	at(2, now)
	if got := m.recent(now.Add(movedHolds - 1)); len(got) != 1 || got[n].before != (model.MAC{2, 1}) || got[n].returned {
		t.Errorf("the move of a host that was away is told as %+v", got)
	}
	if got := m.recent(now.Add(movedHolds)); len(got) > 0 {
		t.Errorf("after %v it is still told that %+v have moved", movedHolds, got)
	}
	at(1, now.Add(movedHolds))
	if got := m.recent(now.Add(movedHolds)); len(got) != 1 || got[n].returned {
		t.Errorf("a host that came back after %v is told as %+v", movedHolds, got)
	}
	m.follow(b, nexthop.Hop{Via: nexthop.Neighbor{Ifindex: 2, Address: n.Address}, MAC: model.MAC{2, 3}}, now.Add(movedHolds))
	if got := m.recent(now.Add(movedHolds)); len(got) != 1 {
		t.Errorf("with another route of a backend it is told that %+v have moved", got)
	}
	for i := range 5000 {
		m.see(nexthop.Neighbor{Ifindex: 3 + i, Address: n.Address}, model.MAC{2, 1}, model.MAC{2, 2}, now.Add(2*movedHolds))
	}
	m.see(n, model.MAC{2, 1}, model.MAC{2, 2}, now.Add(3*movedHolds))
	if len(m.of) != 1 {
		t.Errorf("%d moves are kept, of one that is told", len(m.of))
	}
}
