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
	mix := func(word uint64) { hash = hashMix(hash, word) }
	byFlow := affinity == AffinityFlow
	if affinity == AffinityDestinationPort {
		return HashFinish(hash, uint64(f.DestinationPort)<<32)
	}
	f.Source = affinity.counted(f.Source)
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
	return HashFinish(hash, last)
}

// PlaceHash returns the hash that chooses the flow's places in a director's flow memory, by the words
// that a place has of the flow. The service is its index there. It is flow_hash in
// bpf/director/pick/flow_table.h.
func (f Flow) PlaceHash(salt uint64, service uint32) uint64 {
	hash, source := hashMix(salt, uint64(service)), f.Source.AsSlice()
	if f.Source.Is6() {
		hash = hashMix(hash, binary.LittleEndian.Uint64(source))
		hash = hashMix(hash, uint64(binary.LittleEndian.Uint32(source[8:])))
	}
	key := binary.BigEndian.AppendUint16(source[len(source)-4:], f.SourcePort)
	return HashFinish(hash, binary.LittleEndian.Uint64(binary.BigEndian.AppendUint16(key, f.DestinationPort)))
}

func hashMix(hash, word uint64) uint64 {
	hash = (hash ^ word) * 0x9e3779b97f4a7c15
	return hash ^ hash>>32
}

// HashFinish returns the hash of a flow with its last word: hash_finish in bpf/director/pick/ring.h.
func HashFinish(hash, word uint64) uint64 {
	hash = (hash ^ word) * 0xbb67ae8584caa73b
	hash ^= hash >> 29
	hash *= 0x3c6ef372fe94f82b
	return hash ^ hash>>32
}

// Checksum returns the checksum of what an IP packet has behind its header, with the pseudo-header of
// its addresses (RFC 9293, RFC 4443); 0: it has the right one already.
func Checksum(protocol uint8, source, destination netip.Addr, body []byte) uint16 {
	sum := uint32(protocol) + uint32(len(body))
	for _, part := range [][]byte{source.AsSlice(), destination.AsSlice(), body} {
		for ; len(part) > 1; part = part[2:] {
			sum += uint32(binary.BigEndian.Uint16(part))
		}
		if len(part) == 1 {
			sum += uint32(part[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
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

// Receiver is the backend that gets a new connection in a slot, if no policy places it elsewhere: the
// first of the slot's row that is up. NoBackend: none is.
func (r *Ring) Receiver(s Slot, up func(uint32) bool) uint32 {
	next := []uint32{s.Owner, s.Next}
	if s.Next != NoBackend && s.Next&ListFlag != 0 {
		next = append(next[:1], r.Lists[s.Next&^ListFlag].Next...)
	}
	for _, b := range next {
		if b != NoBackend && up(b) {
			return b
		}
	}
	return NoBackend
}

// RememberedFlow is what a director remembers of a flow, in words that mean the same on
// all directors of its group: the flow's service and backend by what packets name them,
// and not by a director's indexes.
type RememberedFlow struct {
	Service ServiceID
	Backend netip.AddrPort // port 0: the packet's own
	Source  netip.AddrPort // the client
	Port    uint16         // that it sends to: one of the service's
	Class   FlowClass
	State   RememberedState
	Age     uint32 // since its last packet, in units of 2^30 ns
	Next    uint32 // TCP: the sequence number that the client goes on with; 0: not known
}

// FlowNews is what has become known of flows.
type FlowNews struct {
	Flows []RememberedFlow
	NAT   []NATFlow
}

// NATFlow is a flow of full NAT.
type NATFlow struct {
	RememberedFlow
	Own     netip.AddrPort // the director's address and port from which its packets come to the backend
	Taken   uint16         // the port of the host that has taken the connection over; 0: none has
	Numbers NATNumbers
	// Announced says that the address's director announces it: the others do, if it is lost.
	Announced bool
	// ByOwner says that the address's own director tells of the flow: no other one can know better
	// which flow has the port.
	ByOwner                     bool
	ClientClosed, BackendClosed bool // which side of a TCP connection has sent a FIN
}

// NATNumbers are the sequence numbers of a TCP connection of full NAT: a packet that is not near
// them is not of the connection (bpf/lib/proof.h). Of a proved flow only the upper halves are known.
type NATNumbers struct {
	Known           bool   // what follows
	Client, Backend uint32 // the number that each side goes on with
}

// FlowClass is how well the packets that were seen of a flow show that it is real, and not
// forged: see bpf/lib/proof.h.
type FlowClass uint8

// The classes of flows.
const (
	FreshFlow     FlowClass = 0 // it may be one of a flood: it gives way to others, and directors share few of them
	SustainedFlow FlowClass = 1 // one side of it was seen to go on for a while
	ProvedFlow    FlowClass = 2 // both sides have sent what only they can
)

// String is the word that people read.
func (c FlowClass) String() string {
	return [...]string{"fresh", "sustained", "proved"}[min(c, ProvedFlow)]
}

// RememberedState is how far a flow has come, by what its client has sent.
type RememberedState uint8

// The states of flows. One that opens is not shared.
const (
	FlowOpen    RememberedState = 1 // TCP: more than SYNs; UDP: at least two datagrams
	FlowClosing RememberedState = 2 // TCP: a FIN
	FlowReset   RememberedState = 3 // TCP: a RST
	FlowOpening RememberedState = 4 // TCP: only SYNs, or one packet of a connection that this director did not know: its backend is a guess; UDP: one datagram
)

// ServiceResets is how many fresh flows of a service were reset by their clients in the last minute.
type ServiceResets struct {
	Service ServiceID
	Flows   uint32
}

// The tables of flows, as people call them: of directors, and of agents.
const (
	FlowMemoryTable = "flow memory"
	NATTable        = "full NAT's table"

	UDPFlowsTable = "the agent's UDP flows"
	PodsTable     = "the flows of pods"
	RedirectTable = "the redirected connections"
)

// CrowdedService is one of those that have most of the flows in a table without room.
type CrowdedService struct {
	Service string
	Segment Segment
	Table   string
	Flows   uint32 // fresh ones that it has there; NATTable: all, where no service has a fresh one; of agents' tables: packets that found no place in some seconds
}
