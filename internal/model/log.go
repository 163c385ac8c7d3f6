package model

import (
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

// Log is the generations of a service that some connection may still need, newest
// first. With the service's backends it is all that the service's rows depend on, so
// directors with equal logs have equal rows.
type Log struct {
	Generations []Generation `json:"generations"`
}

// Generation is a version of a service's membership and weights: the least that a
// ring can be made of again.
type Generation struct {
	Number uint64    `json:"number"` // larger than those of all older ones
	Since  time.Time `json:"since"`  // when it became the newest, UTC
	// Held is the last time, UTC, at which it still placed connections after a newer
	// one had replaced it: in slots that the newer ones had to wait for.
	Held    time.Time `json:"held,omitzero"`
	Slots   uint32    `json:"slots"` // the ring's size, a prime
	Members []Member  `json:"members"`
	// Gone has the members that were no backends any more at some time since. Coming
	// back does not bring them back into this generation: their connections are lost.
	Gone []netip.AddrPort `json:"gone,omitempty"`
}

// Member is a backend that owns slots of a generation. Members are in the order of
// their addresses and ports, each there once.
type Member struct {
	Backend netip.AddrPort `json:"backend"` // port 0: the packet's own
	Weight  uint16         `json:"weight"`  // more than 0
}
