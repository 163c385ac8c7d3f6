package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
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
	// Name is one of the director's interfaces or, with a segment, also the host's VLAN interface for
	// it on one of them.
	Name string `json:"name"`
	// Segment is whose VIPs are answered for there, inside the segment.
	Segment Segment `json:"segment,omitzero"`
	// Prefixes say which VIPs; none: those in the networks of the interface's addresses. In a segment,
	// an interface that is a trunk, or has no addresses, stands for all of the segment's VIPs.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
}

// NeighborPlace is where a director answers: an interface may be there for several segments.
type NeighborPlace struct {
	Interface string
	Segment   Segment
}

// Place returns where the director answers.
func (i *NeighborInterface) Place() NeighborPlace { return NeighborPlace{i.Name, i.Segment} }

// String returns "eth0", or "eth0 vlan:100".
func (p NeighborPlace) String() string {
	if p.Segment == (Segment{}) {
		return p.Interface
	}
	return p.Interface + " " + p.Segment.String()
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

// In reports whether the director answers for VIPs of a segment, or in none.
func (n *Neighbor) In(s Segment) bool {
	return slices.ContainsFunc(n.Interfaces, func(i NeighborInterface) bool { return i.Segment == s })
}

// OtherTrunk is a backend whose packets leave by another interface than by which its tenant's network is told to be
// reached.
type OtherTrunk struct {
	Segment          Segment
	Service, Backend int // of the segment's first such backend
	Interface        int // of director.neighbor, on which the director answers there
}

// Problem says what is wrong.
func (o *OtherTrunk) Problem(c *Config) string {
	return fmt.Sprintf("packets to backend %s in %s leave by %s, the first of director.interfaces, as long as this host has no interface for the VLAN, and director.neighbor answers there on %s: give segments[].interface",
		c.Services[o.Service].Backends[o.Backend].Address, o.Segment, c.Director.Interfaces[0], c.Director.Neighbor.Interfaces[o.Interface].Name)
}

// OtherTrunks returns, for each VLAN of a tenant in which the director answers on some of its interfaces, and not on
// the first, a backend with a MAC address that nothing leads to one of them: its packets leave by the first interface,
// if the host has none for the VLAN.
func (c *Config) OtherTrunks() (found []OtherTrunk) {
	if len(c.Director.Interfaces) < 2 {
		return nil
	}
	on := map[Segment]int{} // on which of director.neighbor's interfaces the director answers; -1: also where packets leave
	for i := range c.Director.Neighbor.Interfaces {
		n := &c.Director.Neighbor.Interfaces[i]
		switch _, known := on[n.Segment]; {
		case n.Segment.Kind != SegmentVLAN:
		case n.Name == c.Director.Interfaces[0] || !slices.Contains(c.Director.Interfaces, n.Name): // another one is the host's, for the VLAN
			on[n.Segment] = -1
		case !known:
			on[n.Segment] = i
		}
	}
	given := c.SegmentInterfaces()
	for i := range c.Services {
		if len(on) == 0 {
			break
		}
		s := &c.Services[i]
		for j := range s.Backends {
			b := &s.Backends[j]
			in := b.TenantIn(s)
			if at, is := on[in]; is && at >= 0 && !b.MAC.IsZero() && b.Interface == "" && given[in] == "" {
				found = append(found, OtherTrunk{in, i, j, at})
				delete(on, in) // the others are likely the same
			}
		}
	}
	return found
}

// IsZero reports whether no key is given.
func (n Neighbor) IsZero() bool {
	return !n.Given() && n.Lease == 0 && n.Settle == 0 && n.Refresh == 0 && n.Rate == 0
}

// setDefaults leaves a file without interfaces as it is.
func (n *Neighbor) setDefaults() {
	if !n.Given() {
		return
	}
	n.Lease, n.Settle = cmp.Or(n.Lease, DefaultNeighborLease), cmp.Or(n.Settle, DefaultNeighborSettle)
	n.Refresh, n.Rate = cmp.Or(n.Refresh, DefaultNeighborRefresh), cmp.Or(n.Rate, DefaultNeighborRate)
}

// NeighborGroup is what the directors of a group have written about which director answers for
// which VIP. It is to be read only.
type NeighborGroup struct {
	Known   bool                      // it has been read; else the rest says nothing
	Members map[netip.Addr][]VIP      // the directors that are there, and the VIPs that each could answer for, in order
	Homes   map[netip.Addr]netip.Addr // by address of full NAT: the director that it belongs to, if that one is there
	Home    []netip.Addr              // those of this director, as it has written
	Owners  map[VIP]NeighborOwner     // no director answers for a VIP that is not in it
	Joined  bool                      // this director is among the members, by its present lease
}

// NeighborOwner is the director that answers for a VIP.
type NeighborOwner struct {
	Director netip.Addr
	Mine     bool // it is this one, by its present lease
}

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
	Name      string  `json:"name"`
	Segment   Segment `json:"segment,omitzero"` // whose VIPs are answered for there
	MAC       string  `json:"mac,omitempty"`
	Problem   string  `json:"problem,omitempty"` // why no VIP is answered for there
	Announced uint64  `json:"announced"`         // frames that nobody asked for
	Answered  uint64  `json:"answered"`          // questions
	Limited   uint64  `json:"limited"`           // questions that were not answered: there were too many
	Conflicts uint64  `json:"conflicts"`         // frames of other hosts that claim a VIP of this director
}

// Place returns where the director answers.
func (s *NeighborInterfaceStatus) Place() NeighborPlace { return NeighborPlace{s.Name, s.Segment} }

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
	Segment    Segment       `json:"segment,omitzero"`
	VIP        netip.Addr    `json:"vip"`
	State      NeighborState `json:"state"`
	Owner      netip.Addr    `json:"owner"`          // in a group
	Since      time.Time     `json:"since,omitzero"` // this director answers
	Interfaces []string      `json:"interfaces"`     // the interfaces where it would answer
	Problem    string        `json:"problem,omitempty"`
}

// Of returns the VIP.
func (v *NeighborVIP) Of() VIP { return VIP{v.Segment, v.VIP} }

// answering checks where a director answers for VIPs itself.
func (v *validation) answering() {
	n := &v.config.Director.Neighbor
	if n.IsZero() {
		return
	}
	const at = "director.neighbor"
	if !n.Given() {
		v.errs.add(at+".interfaces", "is required")
	}
	v.neighborInterfaces(at, n)
	v.duration(at+".lease", n.Lease, MinNeighborLease, MaxNeighborLease)
	if time.Duration(n.Lease)%time.Second != 0 {
		v.errs.add(at+".lease", "%s is not a whole number of seconds, in which etcd counts", n.Lease)
	}
	v.duration(at+".settle", n.Settle, MinNeighborSettle, MaxNeighborSettle)
	v.duration(at+".refresh", n.Refresh, MinNeighborRefresh, MaxNeighborRefresh)
	if n.Rate != 0 {
		v.limit(at+".rate", uint64(n.Rate), 1, MaxNeighborRate)
	}
	group, shared := v.config.Director.Group, v.config.Director.Store.Etcd.Given()
	switch {
	case shared && len(group) == 0:
		v.errs.add(at, "needs director.group: by their addresses in it the directors of an etcd know who answers for a VIP")
	case !shared && len(group) > 1:
		v.errs.addWithOther(at, "director.group", "needs director.store.etcd: without it all directors of the group would answer for every VIP")
	}
}

func (v *validation) neighborInterfaces(at string, n *Neighbor) {
	places := make([]NeighborPlace, len(n.Interfaces))
	for i := range n.Interfaces {
		places[i] = n.Interfaces[i].Place()
	}
	quoted := func(p NeighborPlace) string {
		p.Interface = strconv.Quote(p.Interface)
		return p.String()
	}
	each(v, at+".interfaces", places, quoted, func(p NeighborPlace) string { return interfaceProblem(p.Interface) })
	for i, place := range places {
		path := fmt.Sprintf("%s.interfaces[%d]", at, i)
		switch kind := place.Segment.Kind; {
		case kind == SegmentNone && !slices.Contains(v.config.Director.Interfaces, place.Interface):
			v.errs.addWithOther(path, "director.interfaces", "%q is none of the director's, so what comes by it is not forwarded", place.Interface)
		case kind != SegmentNone && kind != SegmentVLAN:
			v.errs.add(path+".segment", "is only for vlan, and this is %s", place.Segment)
		}
		seen := map[netip.Prefix]int{}
		for j, p := range n.Interfaces[i].Prefixes {
			here := fmt.Sprintf("%s.prefixes[%d]", path, j)
			if problem := prefixProblem(p); problem != "" {
				v.errs.add(here, "%s %s", prefixText(p), problem)
				continue
			}
			if first, dup := seen[p]; dup {
				v.errs.addWithOther(here, fmt.Sprintf("%s.prefixes[%d]", path, first), "%s is there twice", prefixText(p))
			}
			seen[p] = j
		}
	}
}
