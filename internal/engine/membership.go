package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// membership is what a service's rows are made from.
type membership struct {
	size      uint32
	members   []maglev.Member // in the order of their keys
	positions []uint32        // of the members among the service's backends
	bound     int             // on the candidates in a row

	ring digest // of size and members: equal ones have equal rings
	rows digest // of everything: equal ones have equal rows
}

type digest [sha256.Size]byte

// newMembership finds who may own slots of a service: backends that have a
// weight and are not draining. A backend is hashed by address and port, so that
// no slot moves when it gets another name. A default size follows all backends,
// so that it does not change, and every slot with it, when one drains.
func newMembership(s *model.Service) membership {
	m := membership{size: s.RingSize, bound: model.MaxCandidates}
	if m.size == 0 {
		m.size = maglev.DefaultSize(len(s.Backends))
	}
	type member struct {
		maglev.Member
		position uint32
	}
	var members []member
	for i, b := range s.Backends {
		if b.Address.Is6() {
			m.bound = model.MaxCandidates6
		}
		if b.State == model.Draining || b.Weight == 0 {
			continue
		}
		key := netip.AddrPortFrom(b.Address, b.Port).String()
		members = append(members, member{maglev.Member{Key: key, Weight: b.Weight}, uint32(i)})
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.Key, b.Key) })
	for _, e := range members {
		m.members = append(m.members, e.Member)
		m.positions = append(m.positions, e.position)
	}
	m.digest()
	return m
}

func (m *membership) digest() {
	text := binary.BigEndian.AppendUint32(nil, m.size)
	for _, e := range m.members {
		text = binary.BigEndian.AppendUint16(text, e.Weight)
		text = binary.BigEndian.AppendUint32(text, uint32(len(e.Key)))
		text = append(text, e.Key...)
	}
	m.ring = sha256.Sum256(text)
	text = append(text[:0], m.ring[:]...)
	text = append(text, byte(m.bound))
	for _, p := range m.positions {
		text = binary.BigEndian.AppendUint32(text, p)
	}
	m.rows = sha256.Sum256(text)
}

// makeRing computes the ring; its owners are positions in members.
func (m *membership) makeRing() maglev.Generation {
	owners, backups := maglev.RingAndBackups(m.size, m.members)
	return maglev.Generation{Owners: owners, Backups: backups}
}

// rows are a service's rows in their final form.
type rows struct {
	ring model.Ring
	held int
}

// makeRows makes the rows. The log has one generation, the desired one.
func (m *membership) makeRows(ring maglev.Generation) rows {
	log := []maglev.Generation{{Owners: m.among(ring.Owners), Backups: m.among(ring.Backups)}}
	table := maglev.Rows(log, nil, m.bound)
	r := rows{held: table.Held}
	if len(table.Slots) > 0 {
		r.ring = model.Ring{Slots: make([]model.Slot, len(table.Slots))}
	}
	for i, slot := range table.Slots {
		r.ring.Slots[i] = model.Slot(slot)
	}
	for _, list := range table.Lists {
		r.ring.Lists = append(r.ring.Lists, model.CandidateList(list))
	}
	return r
}

// among turns positions in members into positions among the service's backends.
func (m *membership) among(members []uint32) []uint32 {
	backends := make([]uint32, len(members))
	for i, e := range members {
		backends[i] = e
		if e != maglev.None {
			backends[i] = m.positions[e]
		}
	}
	return backends
}
