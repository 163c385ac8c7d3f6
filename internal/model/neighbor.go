package model

import (
	"net/netip"
	"time"
)

// Neighbor is how a director answers for VIPs by ARP and NDP, on links where no router is told of
// them. The zero value: it does not.
type Neighbor struct {
	Interfaces []NeighborInterface `json:"interfaces,omitempty"` // the director's interfaces where it answers
	// Lease is how long a director of a group that is gone still has its VIPs.
	Lease Duration `json:"lease,omitzero"`
	// Settle is how long a director has to be there before VIPs move to it from a healthy one.
	Settle  Duration `json:"settle,omitzero"`
	Refresh Duration `json:"refresh,omitzero"` // between announcements of a VIP whose state has not changed
	Rate    uint32   `json:"rate,omitempty"`   // announcements per second and interface at most
}

// NeighborInterface is a link that VIPs are on.
type NeighborInterface struct {
	Name string `json:"name"`
	// Prefixes say which VIPs; none: those in the networks of the interface's addresses.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
}

// Defaults and bounds of the keys. etcd counts leases in seconds, and takes up to two to choose
// another leader: a lease that ends before that would take the VIPs from healthy directors.
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

// NeighborGroup is what the directors of a group have written about which director answers for
// which VIP. It is to be read only.
type NeighborGroup struct {
	Known   bool                         // it has been read; else the rest says nothing
	Members map[netip.Addr][]netip.Addr  // the directors that are there, and the VIPs that each could answer for, in order
	Owners  map[netip.Addr]NeighborOwner // by VIP; no director answers for a VIP that is not in it
	Joined  bool                         // this director is among the members, by its present lease
}

// NeighborOwner is the director that answers for a VIP.
type NeighborOwner struct {
	Director netip.Addr
	Mine     bool // it is this one, by its present lease
}
