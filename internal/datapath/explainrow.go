package datapath

import (
	"net/netip"
	"unsafe"

	"weir.io/weir/internal/model"
)

// line returns a pointer to a line of the rings; nil: there is no such line.
func (w *snapshot) line(n uint32) unsafe.Pointer {
	if at := uint64(n) * lineSize; n != 0 && at+lineSize <= uint64(len(w.rings)) {
		return unsafe.Pointer(&w.rings[at])
	}
	return nil
}

// slotOf is the slot that a packet has read of its ring, and the ring's header; nil: it asked no
// ring. A packet that a policy redirected has not read its slot: for that one, slotOf is the slot
// whose row the flow would have had.
func (w *snapshot) slotOf(p *observedPacket) (*directorSlot, *directorRingHeader) {
	header := (*directorRingHeader)(w.line(p.Ring))
	if header == nil {
		return nil, nil
	}
	slot := directorSlot(p.Slot)
	if slot == (directorSlot{}) && header.Size > 0 {
		if there := w.slotIn(p.Ring, header, p.flow()); there != nil {
			slot = *there
		}
	}
	return &slot, header
}

// slotIn is a copy of a flow's slot in a ring; nil: it has none.
func (w *snapshot) slotIn(ring uint32, header *directorRingHeader, f model.Flow) *directorSlot {
	number := uint32(f.Hash(header.Salt, model.Affinity(header.Affinity)) >> 32 * uint64(header.Size) >> 32)
	slots := w.line(ring + headerLines + number/uint32(slotsPerLine))
	if slots == nil {
		return nil
	}
	slot := (*[slotsPerLine]directorSlot)(slots)[number%uint32(slotsPerLine)]
	return &slot
}

// listOf is the list of a slot; nil: it has none.
func (w *snapshot) listOf(ring uint32, slot *directorSlot) *directorCandidates {
	if slot.Next&slotList == 0 {
		return nil
	}
	return (*directorCandidates)(w.line(ring + slot.Next&^slotList))
}

// rowOf are the backends of a slot in the order in which a new connection tries them.
func (w *snapshot) rowOf(ring uint32, slot *directorSlot) []uint32 {
	row := []uint32{slot.Owner}
	if list := w.listOf(ring, slot); list != nil {
		row = append(row, list.Index[:min(int(list.Count), len(list.Index))]...)
	} else if next := slot.Next &^ (slotList | slotSettling); next != 0 {
		row = append(row, next)
	}
	kept := row[:0]
	for _, index := range row {
		if index != 0 && int(index) < len(w.entries) {
			kept = append(kept, index)
		}
	}
	return kept
}

// turnsOf are the backends among which the ring's policy chooses; nil: it does not choose.
func (w *snapshot) turnsOf(ring uint32, header *directorRingHeader) (all []uint32) {
	for i := range header.TurnCount {
		line := (*directorTurns)(w.line(ring + header.Turns + i/uint32(turnsPerLine)))
		if line == nil {
			return all
		}
		if index := line.Index[i%uint32(turnsPerLine)]; int(index) < len(w.entries) {
			all = append(all, index)
		}
	}
	return all
}

// ages are the positions of a row in the order in which an unknown connection tries them.
func (w *snapshot) ages(ring uint32, slot *directorSlot, beyond bool) []uint8 {
	list := w.listOf(ring, slot)
	switch {
	case list == nil:
		return []uint8{0, 1}
	case beyond:
		return list.Beyond[:min(int(list.Count)+1, len(list.Beyond))]
	}
	return list.Oldest[:min(int(list.Count)+1, len(list.Oldest))]
}

// explainSlot names the row of a flow in a ring.
func (w *snapshot) explainSlot(ring uint32, slot *directorSlot, f model.Flow) *model.ExplainedSlot {
	header := (*directorRingHeader)(w.line(ring))
	if header == nil || header.Size == 0 {
		return nil
	}
	hash := f.Hash(header.Salt, model.Affinity(header.Affinity))
	number := hash >> 32 * uint64(header.Size) >> 32
	e := &model.ExplainedSlot{Number: int(number), Of: int(header.Size), Settling: slot.Next&(slotList|slotSettling) == slotSettling}
	ages := w.ages(ring, slot, beyondBorder(header, hash>>32, number))
	for position, index := range w.rowOf(ring, slot) {
		c := model.ExplainedCandidate{State: model.BackendState(w.entries[index].State)}
		c.Name, c.Backend = w.nameOf(index)
		for age, at := range ages {
			if int(at) == position {
				c.Age = age
			}
		}
		e.Candidates = append(e.Candidates, c)
	}
	return e
}

// beyondBorder is beyond_border.
func beyondBorder(header *directorRingHeader, hash, number uint64) bool {
	if header.Older == 0 {
		return false
	}
	first := (number<<32 + uint64(header.Size) - 1) / uint64(header.Size)
	return hash*uint64(header.Older)>>32 != first*uint64(header.Older)>>32
}

// explainBefore is the slot in the ring before, for connections that are older than the
// service's affinity.
func (w *snapshot) explainBefore(p *observedPacket, header *directorRingHeader) *model.ExplainedSlot {
	if header.Before == 0 {
		return nil
	}
	ring := p.Ring + header.Before
	before := (*directorRingHeader)(w.line(ring))
	if before == nil || before.Size == 0 {
		return nil
	}
	f := p.flow()
	slot := w.slotIn(ring, before, f)
	if slot == nil {
		return nil
	}
	return w.explainSlot(ring, slot, f)
}

// nameOf names a backend by its index.
func (w *snapshot) nameOf(index uint32) (string, netip.AddrPort) {
	entry := &w.entries[index]
	address := netip.AddrPortFrom(addressOf(entry.Address, entry.Flags&uint8(directorBackendFlagBACKEND_IPV6) != 0), bigEndian16(entry.Port))
	if s := w.services[entry.Service]; s != nil {
		for _, b := range s.order {
			if b.index == index {
				return b.desired.Name, netip.AddrPortFrom(b.desired.Address, b.desired.Port)
			}
		}
	}
	return "", address
}
