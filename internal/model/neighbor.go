package model

import (
	"net/netip"
	"time"
)

// Neighbor is how a director answers for VIPs on links where no router is told of them:
// by ARP and NDP. The zero value: it does not.
type Neighbor struct {
	Interfaces []NeighborInterface `json:"interfaces,omitempty"` // of the director's, where it does
	// Lease is how long a director that is gone still has its VIPs, in a group.
	Lease Duration `json:"lease,omitzero"`
	// Settle is how long another director has to be there before VIPs move to it from one
	// that is well.
	Settle  Duration `json:"settle,omitzero"`
	Refresh Duration `json:"refresh,omitzero"` // between announcements of a VIP that nothing has happened to
	Rate    uint32   `json:"rate,omitempty"`   // announcements per second and interface at most
}

// NeighborInterface is a link that VIPs are on.
type NeighborInterface struct {
	Name string `json:"name"`
	// Prefixes say which VIPs; none: those in the networks that the interface has addresses of.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
}

// What a key that is not given means, and what is between the bounds of each. etcd counts
// leases in seconds, and takes up to two for choosing another leader: a lease that ends
// before that would take the VIPs from directors that are well.
const (
	DefaultNeighborLease   = Duration(5 * time.Second)
	MinNeighborLease       = Duration(2 * time.Second)
	MaxNeighborLease       = Duration(time.Minute)
	DefaultNeighborSettle  = Duration(10 * time.Second)
	MinNeighborSettle      = Duration(10 * time.Millisecond)
	MaxNeighborSettle      = Duration(time.Hour)
	DefaultNeighborRefresh = Duration(time.Minute)
	MinNeighborRefresh     = Duration(time.Second)
	MaxNeighborRefresh     = Duration(time.Hour)
	DefaultNeighborRate    = 1000
	MaxNeighborRate        = 100000
)

// Given reports whether the director answers for any.
func (n *Neighbor) Given() bool { return len(n.Interfaces) > 0 }

// IsZero reports whether no key is given.
func (n Neighbor) IsZero() bool {
	return !n.Given() && n.Lease == 0 && n.Settle == 0 && n.Refresh == 0 && n.Rate == 0
}

// setDefaults leaves a file without interfaces as it is.
func (n *Neighbor) setDefaults() {
	if !n.Given() {
		return
	}
	if n.Lease == 0 {
		n.Lease = DefaultNeighborLease
	}
	if n.Settle == 0 {
		n.Settle = DefaultNeighborSettle
	}
	if n.Refresh == 0 {
		n.Refresh = DefaultNeighborRefresh
	}
	if n.Rate == 0 {
		n.Rate = DefaultNeighborRate
	}
}

// NeighborGroup is what the directors of a group have written about who answers for
// which VIP. It is to be read only.
type NeighborGroup struct {
	Known   bool                         // it has been read; else the rest says nothing
	Members map[netip.Addr][]netip.Addr  // the directors that are there, and the VIPs that each could answer for, in order
	Owners  map[netip.Addr]NeighborOwner // by VIP; of those that are not in it nobody answers
	Joined  bool                         // this director is among the members, by its present lease
}

// NeighborOwner is the director that answers for a VIP.
type NeighborOwner struct {
	Director netip.Addr
	Mine     bool // it is this one, by its present lease
}
