package engine

import (
	"net/netip"
	"slices"
	"sync"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// mostPlacements is how many of the rings that were asked for last Placements keeps at least, and half
// of how many it keeps at most: enough for a few services.
const mostPlacements = 64

// Placements says on which backends generations place flows. It remembers rings, which cost
// milliseconds, and is for concurrent use. The zero value is ready.
type Placements struct {
	mu    sync.Mutex
	rings recentRings
}

// Of returns the backend on which a generation of a service's log, all of one tier, places a flow, and its backup;
// invalid: there is none, or no connection needs the slot any more. Places says that the generation
// is the one that places new connections, which needs all of its slots.
func (p *Placements) Of(g *model.Generation, f model.Flow, salt uint64, places bool) (owner, backup netip.AddrPort) {
	if g.Slots == 0 || len(g.Members) == 0 {
		return owner, backup
	}
	slot := int(f.Hash(salt, g.Affinity) >> 32 * uint64(g.Slots) >> 32)
	if !places && !g.Kept.Has(slot) {
		return owner, backup
	}
	ring := p.ring(g)
	member := func(of []uint32) netip.AddrPort {
		if slot >= len(of) || of[slot] == maglev.None {
			return netip.AddrPort{}
		}
		backend := g.Members[of[slot]].Backend
		if slices.Contains(g.Gone, backend) {
			return netip.AddrPort{}
		}
		return backend
	}
	return member(ring.Owners), member(ring.Backups)
}

func (p *Placements) ring(g *model.Generation) maglev.Generation {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rings.most = mostPlacements
	return p.rings.of(g)
}

// Owners returns the owner of each slot of the ring of a generation whose members are of one tier; invalid: it has none.
func (p *Placements) Owners(g *model.Generation) []netip.AddrPort {
	if g.Slots == 0 || len(g.Members) == 0 {
		return nil
	}
	ring := p.ring(g)
	owners := make([]netip.AddrPort, len(ring.Owners))
	for slot, of := range ring.Owners {
		if of != maglev.None {
			owners[slot] = g.Members[of].Backend
		}
	}
	return owners
}
