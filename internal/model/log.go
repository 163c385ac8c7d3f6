package model

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"time"
)

// ServiceID is what packets name a service by. A service that changes it is
// another service, with a log of its own.
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
	// Strained has the backends that keep a part of their share only, in the same order
	// (history.Relieve).
	Strained []Strain `json:"strained,omitempty"`
	// Coming is how many of the newest generations no connection is placed by yet: rows
	// name their owners, and the newest of the others places connections. It is what the
	// clock says of their times, and is not stored.
	Coming int `json:"-"`
}

// Generation is a version of a service's membership and weights: the least that a
// ring can be made of again.
type Generation struct {
	Number uint64    `json:"number"` // larger than those of all older ones
	Since  time.Time `json:"since"`  // when it became the newest, UTC
	// From is when connections are first placed by it, UTC; zero: when it became the newest.
	// Where generations have left between it and the next older one, it is when the oldest
	// of them replaced that one.
	From time.Time `json:"from,omitzero"`
	// Held is the last time, UTC, at which it still placed connections after a newer
	// one had replaced it: in slots that the newer ones had to wait for.
	Held  time.Time `json:"held,omitzero"`
	Slots uint32    `json:"slots"` // the ring's size, a prime
	// Policy is how it places connections: p2c places them on backups as on owners.
	Policy Policy `json:"policy,omitzero"`
	// Affinity is what chose its slots. It is written beside the log, and only where it is
	// not the service's (store.Document).
	Affinity Affinity `json:"-"`
	Members  []Member `json:"members"`
	// Gone has the members that were no backends any more at some time since. Coming
	// back does not bring them back into this generation: their connections are lost.
	Gone []netip.AddrPort `json:"gone,omitempty"`
	// Kept has the slots that connections may still need this generation in, by what
	// agents report; nil: all. It only shrinks, but for the newest generation whose
	// members are not all gone: that one places connections, and needs all.
	Kept *SlotSet `json:"kept,omitempty"`
}

// Places returns when connections are first placed by the generation.
func (g *Generation) Places() time.Time {
	if g.From.IsZero() {
		return g.Since
	}
	return g.From
}

// Member is a backend that owns slots of a generation. Members are in the order of
// their addresses and ports, each there once.
type Member struct {
	Backend netip.AddrPort `json:"backend"` // port 0: the packet's own
	Weight  uint16         `json:"weight"`  // more than 0
}
