package twin_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/lab/twin"
)

// one is a host of a random group.
type one struct {
	twin.Host
	address netip.Addr
	age     time.Duration // since it kept a datagram of the flow; negative: never
	down    bool          // for the director
	dead    bool          // really
}

// Every datagram ends at the host that has its flow. If several have it, that is the one that has
// seen it last; if none has, the first one. This holds whichever hosts are down, and whatever a
// director names.
func TestDatagramsEndWhereTheirFlowIs(t *testing.T) {
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 3))
		hosts := map[netip.Addr]*one{}
		var order []*one
		for i := range 1 + r.IntN(8) {
			h := &one{address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), age: -1}
			h.Addresses = map[netip.Addr]bool{h.address: true}
			if r.IntN(3) == 0 {
				h.age = time.Duration(2+r.IntN(310)) * 2 * time.Second
			}
			h.down = i > 0 && r.IntN(3) == 0
			h.dead = h.down && r.IntN(2) == 0
			hosts[h.address], order = h, append(order, h)
		}
		row := twin.DatagramRow{}
		for _, down := range []bool{false, true} {
			for _, h := range order[1:] {
				if h.down == down {
					row.Hops = append(row.Hops, h.address)
				}
				if down && h.down {
					row.Down++
				}
			}
		}
		if len(row.Hops) == 0 {
			continue
		}
		if got, want := end(t, seed, hosts, order[0], row), owner(order, row); got != want {
			t.Fatalf("seed %d: the datagram ended at %v, want %v", seed, got.address, want.address)
		}
	}
}

// end walks a datagram to its end. Hosts know which others are dead: they have asked before.
func end(t *testing.T, seed uint64, hosts map[netip.Addr]*one, at *one, row twin.DatagramRow) *one {
	t.Helper()
	from := netip.MustParseAddr("10.9.9.9")
	for range 4 * len(hosts) {
		keeps, _, to, next := at.Walk(twin.Datagram{From: from, To: at.address, Age: at.age, Serves: true, Row: row,
			Asks: func(h netip.Addr) bool { return !hosts[h].dead }})
		if keeps {
			return at
		}
		if hosts[to] == nil || hosts[to].dead {
			t.Fatalf("seed %d: %v sends a datagram to %v, who is dead", seed, at.address, to)
		}
		from, at, row = at.address, hosts[to], next
	}
	t.Fatalf("seed %d: the datagram goes round and round", seed)
	return nil
}

// owner is the host that has the flow. It is one that is down for the director only if no other
// host has the flow, and then the first of them.
func owner(order []*one, row twin.DatagramRow) *one {
	has := func(h *one) bool { return h.age >= 0 && h.age < 300*time.Second && !h.dead }
	var best *one
	for _, h := range order {
		if !h.down && has(h) && (best == nil || claim(h) < claim(best)) {
			best = h
		}
	}
	for _, h := range order {
		if best == nil && h.down && has(h) {
			best = h
		}
	}
	if best == nil {
		best = order[0]
	}
	return best
}

// claim is an age as exactly as a row says it.
func claim(h *one) int64 { return min(int64(h.age)>>30, 253) }
