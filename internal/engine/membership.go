package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/turns"
)

// membership is what the rows of one ring of a service are made from.
type membership struct {
	log      []located // generations of one affinity
	coming   int       // how many of the newest generations place no connections yet
	backends int
	bound    int  // on the candidates in a row
	anywhere bool // p2c chooses among all: the service is not in gue

	rows digest // of everything: equal digests mean equal rows
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

func newMemberships(s *model.Service, log model.Log) memberships {
	known := make(map[netip.AddrPort]uint32, len(s.Backends))
	bound := model.MaxCandidates
	for i, b := range s.Backends {
		if b.Address.Is6() || b.Host.Is6() {
			bound = model.MaxCandidates6
		}
		known[b.Endpoint()] = uint32(i)
	}
	now := newMembership(s, log)
	all := memberships{affinity: log.Generations[0].Affinity}
	places := false // one of the newer generations has a member that exists
	for i, g := range log.Generations {
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
	if all.before != nil {
		// Each generation names an owner and a backup, and there are two at most.
		room := min(bound/2, 2*len(all.before.log))
		all.before.seal(room)
		bound -= room
	}
	now.seal(bound)
	all.now = now
	return all
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

// seal says that all generations have been added.
func (m *membership) seal(bound int) {
	m.bound = bound
	text := append(make([]byte, 0, usualText), byte(bound))
	text = binary.BigEndian.AppendUint32(text, uint32(m.backends))
	text = binary.BigEndian.AppendUint32(text, uint32(m.coming))
	if m.anywhere {
		text = append(text, 1)
	}
	for i := range m.log {
		g := &m.log[i]
		text = append(append(text, g.ring[:]...), byte(g.Policy))
		text = binary.BigEndian.AppendUint32(text, uint32(g.Affinity))
		for _, position := range g.positions {
			text = binary.BigEndian.AppendUint32(text, position)
		}
		keep := keptDigest(g.Kept)
		text = append(text, keep[:]...)
	}
	m.rows = sha256.Sum256(text)
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
	for i := range m.log {
		for _, p := range m.log[i].positions {
			if again := int(p) - m.backends - 1; again >= 0 {
				gone[p] = uint32(again)
			}
		}
	}
	return gone
}

// makeRows makes the rows of the log.
func (m *membership) makeRows(ringOf func(*located) maglev.Generation) rows {
	log := make([]maglev.Generation, len(m.log))
	for i := range m.log {
		g := &m.log[i]
		ring := ringOf(g)
		log[i] = maglev.Generation{
			Owners:  among(g.positions, ring.Owners, g.Kept),
			Backups: among(g.positions, ring.Backups, g.Kept),
			Both:    placesOnBackups(&g.Generation),
			Coming:  i < m.coming,
		}
	}
	table := maglev.Rows(log, m.gone(), m.bound)
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
