package histories

import (
	"net/netip"
	"slices"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// promises reports whether later packets must find a connection that a director has placed. They
// find an owner's, and a backup's if rows have room for it (docs/internals/consistency.md, "Rows"), even in a
// held slot whose owner was removed. If a director sees owner and backup down, another backend gets
// the connection, and rows need not name that one.
func (h *life) promises(d *director, backend netip.AddrPort, f model.Flow) (promised, backup bool) {
	row := d.service.Ring.Row(d.service.Ring.SlotOf(f.Hash(d.service.Salt, d.service.Affinity)))
	now := &h.revisions[d.revision]
	is := func(position int) bool {
		return position < len(row) && now.service.Backends[row[position]].Endpoint() == backend
	}
	if is(0) {
		return true, !h.owned(now.log.InTier(d.service.Tier), d.service.Tier, backend, f)
	}
	backup = is(1) && h.backup(now.log.InTier(d.service.Tier), d.service.Tier, f) == backend
	return backup, backup
}

// owned reports whether a backend owns a flow's slot in some generation of a tier's log.
func (h *life) owned(log model.Log, tier uint8, backend netip.AddrPort, f model.Flow) bool {
	return slices.ContainsFunc(log.Generations, func(g model.Generation) bool {
		slot := h.slot(&g, f)
		return len(g.Members) > 0 && (g.Kept == nil || g.Kept.Has(slot)) && g.Members[h.ring(&g, tier).Owners[slot]].Backend == backend
	})
}

// backup is the owner of a flow's slot without its present owner, by the newest generation.
func (h *life) backup(log model.Log, tier uint8, f model.Flow) netip.AddrPort {
	for _, g := range log.Generations {
		if len(g.Members) > 1 {
			return g.Members[h.ring(&g, tier).Backups[h.slot(&g, f)]].Backend
		}
		if len(g.Members) == 1 {
			break
		}
	}
	return netip.AddrPort{}
}

func (h *life) slot(g *model.Generation, f model.Flow) int {
	return int(f.Hash(h.service.ID().Salt(), g.Affinity) >> 32 * uint64(g.Slots) >> 32)
}

// tierRing says which ring it is: of a generation, by its number.
type tierRing struct {
	generation uint64
	tier       uint8
}

// ring is the ring of one generation alone, with the members of a tier.
func (h *life) ring(g *model.Generation, tier uint8) maglev.Generation {
	key := tierRing{g.Number, tier}
	ring, known := h.rings[key]
	if !known {
		var members []maglev.Member
		for _, m := range g.Members {
			members = append(members, maglev.Member{Key: m.Backend.String(), Weight: m.Weight})
		}
		ring.Owners, ring.Backups = maglev.RingAndBackups(g.Slots, members)
		h.rings[key] = ring
	}
	return ring
}

// placedBy is the backend on which a tier places a flow now, in a director's plan.
func placedBy(d *director, tier uint8, f model.Flow) netip.AddrPort {
	s := &d.service
	if int(tier) >= len(s.Tiers) || len(s.Tiers[tier].Ring.Slots) == 0 {
		return netip.AddrPort{}
	}
	r := &s.Tiers[tier]
	if first := r.Ring.Row(r.Ring.SlotOf(f.Hash(s.Salt, r.Affinity)))[0]; first != model.NoBackend {
		return s.Backends[first].Endpoint()
	}
	return netip.AddrPort{}
}

// full reports whether a flow's rows may have had no room for some backend.
func (h *life) full(d *director, f model.Flow) bool {
	s, bound := &d.service, model.MaxCandidates
	if h.six {
		bound = model.MaxCandidates6
	}
	row := s.Ring.Row(s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity)))
	if s.Before == nil {
		return len(row) >= bound
	}
	h.conclusions.rehashed++
	older := 0
	for _, g := range h.revisions[d.revision].log.Generations {
		if g.Affinity == s.Before.Affinity {
			older++
		}
	}
	room := min(bound/2, 2*older)
	if h.tiered {
		room = bound / 2
	}
	before := s.Before.Ring.Row(s.Before.Ring.SlotOf(f.Hash(s.Salt, s.Before.Affinity)))
	return len(row) >= bound-room || len(before) >= room
}
