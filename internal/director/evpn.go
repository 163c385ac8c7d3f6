package director

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/segments"
)

// evpnHosts gives to Segments what other VTEPs tell by EVPN of hosts.
type evpnHosts struct {
	segments *segments.Segments

	mu      sync.Mutex
	begun   bool                     // a configuration has said which segments there are
	of      map[uint32]model.Segment // by their VNIs
	learned model.EVPNLearned
}

// know takes the segments that EVPN is asked about from a configuration.
func (e *evpnHosts) know(c *model.Config) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begun, e.of = true, map[uint32]model.Segment{}
	for id, settings := range c.EVPNSegments() {
		e.of[settings.Wire().ID] = id
	}
	if len(e.of) == 0 {
		e.segments.Forget(model.HostsOfEVPN)
		return
	}
	e.segments.Retain(model.HostsOfEVPN, func(id model.Segment, _ string) bool { return e.isAsked(id) })
	e.say()
}

// isAsked says whether EVPN is asked about a segment. The lock is held.
func (e *evpnHosts) isAsked(id model.Segment) bool {
	for _, of := range e.of {
		if of == id {
			return true
		}
	}
	return false
}

// follow takes what other VTEPs have told.
func (e *evpnHosts) follow(learned model.EVPNLearned) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.learned = learned; e.begun && len(e.of) > 0 {
		e.say()
	}
}

// errNotAllTold is why EVPN may say something else by now.
var errNotAllTold = errors.New("no BGP neighbor of the family evpn has told all its routes since")

// say passes on what is known of hosts. Until neighbors have told all, what they told before goes on where they say
// nothing else. The lock is held.
func (e *evpnHosts) say() {
	said := segments.Said{Hosts: map[model.Segment][]model.SegmentHost{}, MACs: map[model.Segment][]model.SegmentMAC{}, VTEPs: vtepsOf(&e.learned)}
	for _, h := range e.learned.Hosts {
		id, known := e.of[h.VNI]
		switch {
		case !known:
		case h.IP.IsValid():
			said.Hosts[id] = append(said.Hosts[id], model.SegmentHost{Address: h.IP, MAC: h.MAC, VTEP: h.VTEP, VNI: h.Label})
		default:
			said.MACs[id] = append(said.MACs[id], model.SegmentMAC{MAC: h.MAC, VTEP: h.VTEP, VNI: h.Label})
		}
	}
	keepAddresses(&said, e.segments.Hosts(model.HostsOfEVPN))
	if e.learned.Complete {
		e.segments.Say(model.HostsOfEVPN, said)
		return
	}
	e.segments.Add(model.HostsOfEVPN, said)
	e.segments.Lose(model.HostsOfEVPN, time.Now(), errNotAllTold)
}

// mostKept is how many addresses of a family a host keeps: a guest that has had many, one after the other, takes no room
// from others.
const mostKept = 4

// keepAddresses adds the hosts of before whose MAC address is still told, and no IP address of its family any more: a VTEP
// tells only of the addresses in its ARP and neighbor tables, from which its kernel takes those of quiet hosts.
func keepAddresses(said *segments.Said, before map[model.Segment][]model.SegmentHost) {
	type family struct {
		mac model.MAC
		six bool
	}
	for id, hosts := range before {
		if len(said.MACs[id]) == 0 {
			continue
		}
		at := make(map[model.MAC]model.SegmentMAC, len(said.MACs[id]))
		for _, m := range said.MACs[id] {
			if _, is := at[m.MAC]; !is {
				at[m.MAC] = m
			}
		}
		told, has := make(map[netip.Addr]bool, len(said.Hosts[id])), map[family]int{}
		for _, h := range said.Hosts[id] {
			told[h.Address] = true
			has[family{h.MAC, h.Address.Is6()}] = mostKept
		}
		for _, h := range hosts {
			of := family{h.MAC, h.Address.Is6()}
			if m, is := at[h.MAC]; is && !told[h.Address] && has[of] < mostKept {
				has[of]++
				said.Hosts[id] = append(said.Hosts[id], model.SegmentHost{Address: h.Address, MAC: h.MAC, VTEP: m.VTEP, VNI: m.VNI})
			}
		}
		slices.SortStableFunc(said.Hosts[id], func(a, b model.SegmentHost) int { return a.Address.Compare(b.Address) })
	}
}

// countEVPN adds to routes how many neighbors are told of them by EVPN: all that are there, of what is in a segment that
// they are told of, and that no other VTEP has taken.
func (e *evpnHosts) countEVPN(s model.BGPStatus) model.BGPStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	neighbors := 0
	for _, n := range s.Neighbors {
		if n.EVPN != nil && n.State == model.SessionEstablished {
			neighbors++
		}
	}
	for i := range s.Routes {
		r := &s.Routes[i]
		if slices.ContainsFunc(s.EVPN, func(told model.EVPNStatus) bool {
			id, known := e.of[told.VNI]
			return known && id == r.Segment && !slices.ContainsFunc(told.Contested, func(h model.EVPNHost) bool { return h.IP == r.Prefix.Addr() })
		}) {
			r.EVPN = neighbors
		}
	}
	return s
}

// vtepsOf are the VTEPs that have told that they are in this director's segments, or have hosts there.
func vtepsOf(learned *model.EVPNLearned) (vteps []netip.Addr) {
	for _, v := range learned.VTEPs {
		vteps = append(vteps, v.VTEP)
	}
	for _, h := range learned.Hosts {
		vteps = append(vteps, h.VTEP) // of a host that has no IP address yet, too
	}
	slices.SortFunc(vteps, netip.Addr.Compare)
	return slices.Compact(vteps)
}
