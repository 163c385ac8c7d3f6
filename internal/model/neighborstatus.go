package model

import (
	"net/netip"
	"time"
)

// NeighborStatus is which VIPs a director answers for by ARP and NDP, and which directors answer
// for the others.
type NeighborStatus struct {
	Director   netip.Addr                `json:"director"` // by which the group knows this director; zero: it is alone
	Draining   bool                      `json:"draining,omitempty"`
	Lease      LeaseState                `json:"lease,omitempty"` // empty: alone, it needs none
	Problem    string                    `json:"problem,omitempty"`
	Interfaces []NeighborInterfaceStatus `json:"interfaces"`
	VIPs       []NeighborVIP             `json:"vips"`
	Taken      uint64                    `json:"taken"` // VIPs that came to be this director's, since it started
	Lost       uint64                    `json:"lost"`  // VIPs that ceased to be
}

// IsZero reports whether the director answers nowhere.
func (s NeighborStatus) IsZero() bool { return len(s.Interfaces) == 0 }

// LeaseState is the state of the lease by which a director of a group answers.
type LeaseState string

// The states.
const (
	LeaseHeld LeaseState = "held"
	LeaseNone LeaseState = "none" // etcd cannot be asked, or has not been yet: nothing is answered
)

// NeighborInterfaceStatus is a link that VIPs are on.
type NeighborInterfaceStatus struct {
	Name      string `json:"name"`
	MAC       string `json:"mac,omitempty"`
	Problem   string `json:"problem,omitempty"` // why no VIP is answered for there
	Announced uint64 `json:"announced"`         // frames that nobody asked for
	Answered  uint64 `json:"answered"`          // questions
	Limited   uint64 `json:"limited"`           // questions that were not answered: there were too many
	Conflicts uint64 `json:"conflicts"`         // frames of other hosts that claim a VIP of this director
}

// NeighborState is which director answers for a VIP.
type NeighborState string

// The states of a VIP.
const (
	NeighborAnswers NeighborState = "answers" // this director
	NeighborOther   NeighborState = "other"   // another director
	NeighborNobody  NeighborState = "nobody"
)

// NeighborStates are all of them.
var NeighborStates = []NeighborState{NeighborAnswers, NeighborOther, NeighborNobody}

// NeighborVIP is one VIP that is up, or has an owner.
type NeighborVIP struct {
	VIP        netip.Addr    `json:"vip"`
	State      NeighborState `json:"state"`
	Owner      netip.Addr    `json:"owner"`          // in a group
	Since      time.Time     `json:"since,omitzero"` // this director answers
	Interfaces []string      `json:"interfaces"`     // the interfaces where it would answer
	Problem    string        `json:"problem,omitempty"`
}
