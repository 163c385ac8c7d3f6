package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/turns"
)

// membership is what the rows of one ring of a service are made from.
type membership struct {
	log      []located // generations of one affinity
	coming   int       // how many of the newest generations place no connections yet
	backends int
	bound    int         // on the candidates in a row
	own      int         // on those of them that must be named, of the log's own tier
	others   []otherTier // that rows name, too
	anywhere bool        // p2c chooses among all: the service is not in gue

	rows digest // of everything: equal digests mean equal rows
}

// otherTier is another tier's generations, as far as a tier's rows name them.
type otherTier struct {
	log    []located
	coming int
	own    int  // the bound of its own rows
	before bool // unknown connections are tried there first
}

// located is a generation and where its members are.
type located struct {
	model.Generation
	ring digest // equal digests mean equal rings
	// positions has the members' positions among the service's backends. With n backends, n stands
	// for all members that are gone for good, and n+1+i for one that went and came back as backend
	// i.
	positions []uint32
}

type digest [sha256.Size]byte

// usualText is how much text most digests are made from, at most: it is not on the heap.
const usualText = 1024

// memberships are what a service's rings are made from.
type memberships struct {
	affinity model.Affinity // of the ring that places connections
	now      membership
	// before has the generations of another affinity, if there are any, which have their own ring.
	// A packet may carry the rows of both, so they share the bound.
	before *membership
}

// membershipsOf returns those of each tier of a service, or of its only one.
func membershipsOf(s *model.Service, log model.Log) []memberships {
	n := s.Tiers()
	for i := range log.Generations {
		n = max(n, log.Generations[i].Tiers())
	}
	all := make([]memberships, n)
	for tier := range all {
		all[tier] = newMemberships(s, log, uint8(tier))
	}
	unaided := withoutMemory(s, log)
	gue := slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return b.ModeIn(*s) == model.GUE })
	for tier := range all {
		all[tier].setBounds(boundOf(s), func(bound int) int {
			if tier == 0 && !gue {
				return bound // its rows name no other tier
			}
			return ownBound(bound, tier, n)
		})
	}
	for tier := range all {
		m := &all[tier]
		// Directors remember other tiers' flows in slots that settle; but what no director remembers is likely of a tier above.
		for j := range all {
			if j != tier && (unaided || j < tier) {
				m.name(&all[j], j < tier)
			}
		}
	}
	for tier := range all {
		all[tier].now.seal()
		if before := all[tier].before; before != nil {
			before.seal()
		}
	}
	return all
}

// withoutMemory reports whether flows of some backend of the service are not remembered by directors.
func withoutMemory(s *model.Service, log model.Log) bool {
	return slices.ContainsFunc(s.Backends, func(b model.Backend) bool {
		return b.ModeIn(*s) == model.GUE && (s.Protocol != model.UDP || history.Kept(log) > 0)
	})
}

// boundOf is the bound on the candidates in a row.
func boundOf(s *model.Service) int {
	for i := range s.Backends {
		if b := &s.Backends[i]; b.Address.Is6() || b.Host.Is6() {
			return model.MaxCandidates6
		}
	}
	return model.MaxCandidates
}

func newMemberships(s *model.Service, log model.Log, tier uint8) memberships {
	known := make(map[netip.AddrPort]uint32, len(s.Backends))
	for i, b := range s.Backends {
		known[b.Endpoint()] = uint32(i)
	}
	now := newMembership(s, log)
	all := memberships{affinity: log.Generations[0].Affinity}
	places := false // one of the newer generations has a member that exists
	for i, g := range log.Generations {
		g = g.InTier(tier)
		positions, there := positionsIn(&g, known, uint32(len(s.Backends)))
		switch {
		case there && !places:
			if g.Affinity != all.affinity {
				now = newMembership(s, log) // the newer ones have no such member
			}
			// It places connections in all of its slots, even before the log says so.
			all.affinity, places, g.Kept = g.Affinity, true, nil
			now.add(g, positions)
		case g.Affinity == all.affinity:
			now.add(g, positions)
		case there:
			if all.before == nil {
				older := newMembership(s, log)
				all.before = &older
			}
			all.before.add(g, positions)
		}
		if i < log.Coming {
			now.coming = len(now.log) // a generation of another affinity takes effect at once
		}
	}
	all.now = now
	return all
}

// name lets rows name another tier's generations, each in the ring of its affinity.
func (m *memberships) name(other *memberships, before bool) {
	for _, of := range []*membership{&other.now, other.before} {
		if of == nil || len(of.log) == 0 {
			continue
		}
		named := otherTier{of.log, of.coming, of.own, before}
		switch of.log[len(of.log)-1].Affinity {
		case m.affinity:
			m.now.others = append(m.now.others, named)
		default:
			if m.before != nil {
				m.before.others = append(m.before.others, named)
			}
		}
	}
}

// ownBound is the bound on what a row must name of its own tier: tiers share the bound on a row evenly, so that each of them can
// name what all must name. A slot is held instead of losing anything.
func ownBound(bound, tier, tiers int) int {
	if tiers == 1 {
		return bound
	}
	return max(2, (bound+tiers-1-tier)/tiers)
}

// setBounds shares a packet's bound among the two rows, and sets that on the tier's own candidates in each. Each generation
// before a change of affinity names an owner and a backup, and there are two at most; with tiers there is one.
func (m *memberships) setBounds(bound int, own func(bound int) int) {
	if m.before != nil {
		room := min(bound/2, 2*len(m.before.log))
		if own(bound) < bound {
			room = bound / 2
		}
		m.before.bound, m.before.own = room, own(room)
		bound -= room
	}
	m.now.bound, m.now.own = bound, own(bound)
}

// positionsIn returns the positions of a generation's members as membership has them, and whether
// any member exists.
func positionsIn(g *model.Generation, known map[netip.AddrPort]uint32, backends uint32) (positions []uint32, there bool) {
	positions = make([]uint32, len(g.Members))
	for j, member := range g.Members {
		position, is := known[member.Backend]
		switch {
		case !is:
			position = backends
		case slices.Contains(g.Gone, member.Backend):
			position += backends + 1
		default:
			there = true
		}
		positions[j] = position
	}
	return positions, there
}

// newMembership returns an empty membership with room for all of the log's generations.
func newMembership(s *model.Service, log model.Log) membership {
	return membership{log: make([]located, 0, len(log.Generations)), backends: len(s.Backends), anywhere: s.Mode != model.GUE}
}

func (m *membership) add(g model.Generation, positions []uint32) {
	m.log = append(m.log, located{g, ringDigest(&g), positions})
}

// seal says that all generations and other tiers have been added.
func (m *membership) seal() {
	text := append(make([]byte, 0, usualText), byte(m.bound))
	if m.own != m.bound {
		text = append(text, byte(m.own))
	}
	text = binary.BigEndian.AppendUint32(text, uint32(m.backends))
	text = binary.BigEndian.AppendUint32(text, uint32(m.coming))
	if m.anywhere {
		text = append(text, 1)
	}
	text = appendLocated(text, m.log)
	for i := range m.others {
		text = m.others[i].appendText(text)
	}
	m.rows = sha256.Sum256(text)
}

// appendText appends what tells the tier's generations from others.
func (o *otherTier) appendText(text []byte) []byte {
	text = append(append(text, "tier"...), byte(o.own))
	if o.before {
		text = append(text, 1)
	}
	text = binary.BigEndian.AppendUint32(text, uint32(o.coming))
	text = binary.BigEndian.AppendUint32(text, uint32(len(o.log)))
	return appendLocated(text, o.log)
}

func appendLocated(text []byte, log []located) []byte {
	for i := range log {
		g := &log[i]
		text = append(append(text, g.ring[:]...), byte(g.Policy))
		text = binary.BigEndian.AppendUint32(text, uint32(g.Affinity))
		for _, position := range g.positions {
			text = binary.BigEndian.AppendUint32(text, position)
		}
		keep := keptDigest(g.Kept)
		text = append(text, keep[:]...)
	}
	return text
}

// ringDigest is the digest of what a ring depends on.
func ringDigest(g *model.Generation) digest {
	text := binary.BigEndian.AppendUint32(make([]byte, 0, usualText), g.Slots)
	for _, e := range g.Members {
		text = binary.BigEndian.AppendUint16(text, e.Weight)
		text = binary.BigEndian.AppendUint16(text, e.Backend.Port())
		text = binary.BigEndian.AppendUint32(text, uint32(e.Backend.Addr().BitLen()))
		text = append(text, e.Backend.Addr().AsSlice()...)
	}
	return sha256.Sum256(text)
}

// keptDigest is the digest of the slots that a generation keeps.
func keptDigest(kept *model.SlotSet) digest {
	if kept == nil {
		return digest{}
	}
	text, _ := kept.MarshalText() // cannot fail
	return sha256.Sum256(text)
}

// makeRing computes the ring of a generation; its owners are positions in Members.
func makeRing(g *model.Generation) maglev.Generation {
	members := make([]maglev.Member, len(g.Members))
	for i, e := range g.Members {
		members[i] = maglev.Member{Key: e.Backend.String(), Weight: e.Weight}
	}
	owners, backups := maglev.RingAndBackups(g.Slots, members)
	return maglev.Generation{Owners: owners, Backups: backups}
}

// placesOnBackups reports whether a generation places new connections on backups as well as on
// owners.
func placesOnBackups(g *model.Generation) bool { return g.Policy == model.P2C }

// rows are a service's rows in their final form.
type rows struct {
	ring         model.Ring
	held, shared int
	heldAt       []uint64
}

// gone says which positions of membership are of members that are gone.
func (m *membership) gone() maglev.Gone {
	gone := maglev.Gone{uint32(m.backends): maglev.None}
	note := func(log []located) {
		for i := range log {
			for _, p := range log[i].positions {
				if again := int(p) - m.backends - 1; again >= 0 {
					gone[p] = uint32(again)
				}
			}
		}
	}
	note(m.log)
	for i := range m.others {
		note(m.others[i].log)
	}
	return gone
}

// generations returns a log's rings, whose members are positions among the service's backends.
func generations(log []located, coming int, ringOf func(*located) maglev.Generation) []maglev.Generation {
	all := make([]maglev.Generation, len(log))
	for i := range log {
		g := &log[i]
		ring := ringOf(g)
		all[i] = maglev.Generation{
			Owners:  among(g.positions, ring.Owners, g.Kept),
			Backups: among(g.positions, ring.Backups, g.Kept),
			Both:    placesOnBackups(&g.Generation),
			Coming:  i < coming,
		}
	}
	return all
}

// makeRows makes the rows of the log.
func (m *membership) makeRows(ringOf func(*located) maglev.Generation) rows {
	var others []maglev.Tier
	for _, o := range m.others {
		others = append(others, maglev.Tier{Log: generations(o.log, o.coming, ringOf), Own: o.own, Before: o.before})
	}
	table := maglev.TierRows(generations(m.log, m.coming, ringOf), others, m.gone(), m.own, m.bound)
	r := rows{held: table.Held, shared: table.Shared}
	for _, i := range table.HeldAt {
		r.heldAt = append(r.heldAt, m.log[i].Number)
	}
	if len(table.Slots) > 0 {
		r.ring = model.Ring{Slots: make([]model.Slot, len(table.Slots)), Older: table.Older}
	}
	for i, slot := range table.Slots {
		r.ring.Slots[i] = model.Slot(slot)
	}
	for _, list := range table.Lists {
		r.ring.Lists = append(r.ring.Lists, model.CandidateList(list))
	}
	r.ring.Turns = m.turns(len(r.ring.Slots))
	return r
}

// turns returns the turns of the generation that places connections, if its policy has turns: no
// more than slots, so that shares are as exact as theirs. If all of its members are gone, they are
// those of the next older generation that has some, or of the newest coming one.
func (m *membership) turns(slots int) []uint32 {
	for i := range m.log {
		g := &m.log[(m.coming+i)%len(m.log)]
		if !g.Policy.AmongAll() && (g.Policy != model.P2C || !m.anywhere) {
			return nil
		}
		weights := make([]uint16, m.backends)
		for j, position := range g.positions {
			if int(position) < m.backends {
				weights[position] = g.Members[j].Weight
			}
		}
		order := turns.Once(weights)
		if g.Policy == model.RoundRobin || g.Policy == model.P2C {
			order = turns.Order(weights, slots)
		}
		if len(order) > 0 {
			return order
		}
	}
	return nil
}

// among translates positions in members into positions among the service's backends, and leaves out
// slots that are not kept.
func among(positions, members []uint32, kept *model.SlotSet) []uint32 {
	backends := make([]uint32, len(members))
	for i, e := range members {
		backends[i] = maglev.None
		if e != maglev.None && kept.Has(i) {
			backends[i] = positions[e]
		}
	}
	return backends
}
