package model

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"time"
)

// ServiceID is what packets name a service by. A service whose ID changes is another service, with
// a log of its own.
type ServiceID struct {
	Segment  Segment    `json:"segment,omitzero"`
	VIP      netip.Addr `json:"vip"`
	Protocol Protocol   `json:"protocol"`
	Port     PortRange  `json:"port"`
}

// ID returns what packets name the service by.
func (s *Service) ID() ServiceID {
	return ServiceID{s.Segment, s.VIP, s.Protocol, s.Port}
}

// Salt returns what the hashes of the service's flows begin with. It is a function of
// what a packet names the service by, so that it survives a restart, a new name and new
// backends, and agents compute the same.
func (id ServiceID) Salt() uint64 {
	text := binary.BigEndian.AppendUint32(nil, id.Segment.Key())
	text = append(text, byte(id.Protocol))
	text = binary.BigEndian.AppendUint16(text, id.Port.First)
	text = binary.BigEndian.AppendUint16(text, id.Port.Last)
	text = append(text, id.VIP.AsSlice()...)
	sum := sha256.Sum256(text)
	return binary.LittleEndian.Uint64(sum[:])
}

// Log is the generations of a service that some connection may still need, newest
// first. With the service's backends it is all that the service's rows depend on, so
// directors with equal logs have equal rows.
type Log struct {
	Generations []Generation `json:"generations"`
	// Steps has the backends that do not have their whole share yet, in the order of their
	// addresses and ports (history.Ramp).
	Steps []Step `json:"steps,omitempty"`
	// Strained has the backends that keep only a part of their share, in the same order
	// (history.Relieve).
	Strained []Strain `json:"strained,omitempty"`
	// Coming is how many of the newest generations place no connections yet: rows name their
	// owners, and the newest of the other generations places connections. It follows from their
	// times and the clock, and is not stored.
	Coming int `json:"-"`
}

// Generation is a version of a service's membership and weights: just enough to make its
// ring again.
type Generation struct {
	Number uint64    `json:"number"` // larger than the numbers of all older generations
	Since  time.Time `json:"since"`  // when it became the newest, UTC
	// From is when it first places connections, UTC; zero: when it became the newest. If
	// generations between it and the next older one have left the log, it is when the oldest of
	// them replaced that older one.
	From time.Time `json:"from,omitzero"`
	// Held is the last time, UTC, at which it still placed connections although a newer one had
	// replaced it: in slots that the newer ones had to wait for.
	Held  time.Time `json:"held,omitzero"`
	Slots uint32    `json:"slots"` // the ring's size, a prime
	// Policy is how it places connections: p2c places them on backups as well as on owners.
	Policy Policy `json:"policy,omitzero"`
	// Affinity is what chose its slots. It is stored beside the log, and only where it is not the
	// service's (store.Document).
	Affinity Affinity `json:"-"`
	Members  []Member `json:"members"`
	// Gone has the members that have been removed from the service at some time since. One that
	// comes back does not come back into this generation: its connections are lost.
	Gone []netip.AddrPort `json:"gone,omitempty"`
	// Kept has the slots that connections may still need this generation in, by what agents report;
	// nil: all. It only shrinks, except for the newest generation whose members are not all gone:
	// that one places connections, and needs all slots.
	Kept *SlotSet `json:"kept,omitempty"`
}

// Places returns when the generation first places connections.
func (g *Generation) Places() time.Time {
	if g.From.IsZero() {
		return g.Since
	}
	return g.From
}

// Member is a backend that owns slots of a generation. Members are in the order of their addresses
// and ports, without duplicates.
type Member struct {
	Backend netip.AddrPort `json:"backend"` // port 0: the packet's own
	Weight  uint16         `json:"weight"`  // more than 0
}
