package model

import (
	"encoding/binary"
	"net/netip"
)

// Flow is what places a packet: the same values give the same backend on every
// director, and on every agent.
type Flow struct {
	Segment         Segment
	Source          netip.Addr
	Destination     netip.Addr // the VIP; of the source's family
	SourcePort      uint16
	DestinationPort uint16
	Protocol        uint8 // IANA's number, as in the IP header
}

// Hash returns the flow's hash in a service. The upper half chooses the slot, the
// lower half is the entropy of outer headers. It is hash_flow in bpf/director/pick/ring.h: a
// change here is a change there, and moves every connection.
func (f Flow) Hash(salt uint64, affinity Affinity) uint64 {
	hash := salt
	mix := func(word uint64) {
		hash = (hash ^ word) * 0x9e3779b97f4a7c15
		hash ^= hash >> 32
	}
	byFlow := affinity != AffinitySourceIP
	if f.Source.Is4() {
		source, destination := f.Source.As4(), f.Destination.As4()
		addresses := uint64(binary.BigEndian.Uint32(source[:])) << 32
		if byFlow {
			addresses |= uint64(binary.BigEndian.Uint32(destination[:]))
		}
		mix(addresses)
	} else {
		source, destination := f.Source.As16(), f.Destination.As16()
		mix(binary.BigEndian.Uint64(source[:]))
		mix(binary.BigEndian.Uint64(source[8:]))
		if byFlow {
			mix(binary.BigEndian.Uint64(destination[:]))
			mix(binary.BigEndian.Uint64(destination[8:]))
		}
	}
	var last uint64
	if byFlow {
		last = uint64(f.SourcePort)<<48 | uint64(f.DestinationPort)<<32 | uint64(f.Segment.Key()^uint32(f.Protocol)<<26)
	}
	hash = (hash ^ last) * 0xbb67ae8584caa73b
	hash ^= hash >> 29
	hash *= 0x3c6ef372fe94f82b
	return hash ^ hash>>32
}

// SlotOf returns the slot of a hash in a ring with that many slots.
func (r *Ring) SlotOf(hash uint64) int {
	return int(hash >> 32 * uint64(len(r.Slots)) >> 32)
}

// Row returns a slot's candidates in the order in which they are tried.
func (r *Ring) Row(slot int) []uint32 {
	s := r.Slots[slot]
	row := []uint32{s.Owner}
	switch {
	case s.Next == NoBackend:
	case s.Next&ListFlag != 0:
		row = append(row, r.Lists[s.Next&^ListFlag].Next...)
	default:
		row = append(row, s.Next)
	}
	return row
}
