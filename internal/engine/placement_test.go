package engine

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// Every backend that a log's generations place a flow on is in the row that a plan makes
// of the log; the newest one's owner is its first candidate, as long as no slot is held.
func TestPlacementsAreTheRows(t *testing.T) {
	s := model.Service{Name: "s", VIP: netip.MustParseAddr("192.0.2.1"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.L2DSR, RingSize: 251}
	var log model.Log
	now := time.Unix(1e9, 0)
	for n := range 5 {
		s.Backends = append(s.Backends, model.Backend{Name: fmt.Sprint(n), Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), State: model.Active, Weight: 100})
		if n > 1 {
			log = history.Advance(log, &s, now.Add(time.Duration(n)*time.Second))
		}
	}
	table, _ := Plan(model.Config{Services: []model.Service{s}}, Logs{s.ID(): log}, nil)
	of := &table.Services[0]
	var placements Placements
	for port := range uint16(3000) {
		f := model.Flow{Source: netip.MustParseAddr("198.51.100.7"), Destination: s.VIP, SourcePort: port, DestinationPort: 80, Protocol: 6}
		named := map[netip.AddrPort]bool{}
		row := of.Ring.Row(of.Ring.SlotOf(f.Hash(of.Salt, of.Affinity)))
		for _, position := range row {
			named[netip.AddrPortFrom(of.Backends[position].Address, 0)] = true
		}
		for i := range log.Generations {
			owner, backup := placements.Of(&log.Generations[i], f, of.Salt, i == 0)
			if !named[owner] {
				t.Fatalf("port %d: generation %d places it on %v, who is not in its row %v", port, log.Generations[i].Number, owner, row)
			}
			if i == 0 && (owner.Addr() != of.Backends[row[0]].Address || !named[backup]) {
				t.Fatalf("port %d: the newest generation places it on %v, backup %v, its row is %v", port, owner, backup, row)
			}
		}
	}
}

// No ring is made again as long as there are no more than mostPlacements, nor when one more comes.
func TestPlacementsKeepRings(t *testing.T) {
	var placements Placements
	ring := func(n int) *uint32 {
		g := &model.Generation{Slots: 11, Members: []model.Member{{Backend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 0), Weight: 1}}}
		return &placements.ring(g).Owners[0]
	}
	first := map[int]*uint32{}
	for n := range mostPlacements {
		first[n] = ring(n)
	}
	for n := range mostPlacements {
		if ring(n) != first[n] {
			t.Errorf("ring %d of %d was made again", n, mostPlacements)
		}
	}
	ring(mostPlacements)
	for n := range mostPlacements {
		if ring(n) != first[n] {
			t.Errorf("ring %d was made again after one more had come", n)
		}
	}
	for n := range 200 {
		ring(n)
	}
	if has := len(placements.rings.now) + len(placements.rings.before); has > 2*mostPlacements {
		t.Errorf("%d rings are kept", has)
	}
}
