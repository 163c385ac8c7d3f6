package datapath

import (
	"encoding/binary"
	"net/netip"

	"weir.io/weir/internal/model"
)

// The twin of bpf/pick.h, written a second time from docs/datapath.md, so that a
// slip in one of the two shows. It works on addresses and numbers, never on the
// bytes of a frame.

// twinFlow is what places a packet.
type twinFlow struct {
	segment     model.Segment
	source      netip.Addr
	destination netip.Addr
	sport       uint16
	dport       uint16
	protocol    uint8
}

// hash returns the flow's hash in a service: the upper half chooses the slot,
// the lower half is the entropy of outer headers.
func (f twinFlow) hash(salt uint64, affinity model.Affinity) uint64 {
	var words []uint64
	last := uint64(f.sport)<<48 | uint64(f.dport)<<32 | uint64(f.segment.Key()^uint32(f.protocol)<<26)
	if f.source.Is4() {
		s, d := f.source.As4(), f.destination.As4()
		word := uint64(binary.BigEndian.Uint32(s[:])) << 32
		if affinity == model.AffinityFlow {
			word |= uint64(binary.BigEndian.Uint32(d[:]))
		}
		words = append(words, word)
	} else {
		s, d := f.source.As16(), f.destination.As16()
		words = append(words, binary.BigEndian.Uint64(s[:]), binary.BigEndian.Uint64(s[8:]))
		if affinity == model.AffinityFlow {
			words = append(words, binary.BigEndian.Uint64(d[:]), binary.BigEndian.Uint64(d[8:]))
		}
	}
	if affinity == model.AffinitySourceIP {
		last = 0
	}
	h := salt
	for _, w := range words {
		h = (h ^ w) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	h = (h ^ last) * 0xbb67ae8584caa73b
	h ^= h >> 29
	h *= 0x3c6ef372fe94f82b
	return h ^ h>>32
}

// twinSlot returns the slot of a hash in a ring of this size.
func twinSlot(hash uint64, size int) int {
	return int(hash >> 32 * uint64(size) >> 32)
}

// twinRow returns a slot's candidates in the order in which they are tried.
func twinRow(ring model.Ring, slot int) []uint32 {
	s := ring.Slots[slot]
	row := []uint32{s.Owner}
	switch {
	case s.Next == model.NoBackend:
	case s.Next&model.ListFlag != 0:
		row = append(row, ring.Lists[s.Next&^model.ListFlag]...)
	default:
		row = append(row, s.Next)
	}
	return row
}

// twinPick returns the position of the backend that a flow belongs to; false
// when no candidate of its row is alive.
func twinPick(s *testService, f twinFlow) (int, bool) {
	if len(s.ring.Slots) == 0 {
		return 0, false
	}
	for _, c := range twinRow(s.ring, twinSlot(f.hash(s.salt, s.affinity), len(s.ring.Slots))) {
		state := s.backends[c].state
		if state == directorBackendStateBACKEND_ACTIVE || state == directorBackendStateBACKEND_DRAINING {
			return int(c), true
		}
	}
	return 0, false
}
