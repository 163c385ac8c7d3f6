package bgp

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// evpnPause is the least time between two choices among routes: what comes together is chosen
// from together.
const evpnPause = 5 * time.Millisecond

// maxContested is how many contested entries of a segment are named.
const maxContested = 16

// evpnOwn is what this director tells of its segments.
type evpnOwn struct {
	routes    []evpnOwnRoute
	places    map[evpnPlace]bool // the MAC addresses of its entries
	addresses map[evpnAddress]bool
}

// evpnOwnRoute is a route that neighbors are told.
type evpnOwnRoute struct {
	evpnKey
	vni      uint32
	vtep     netip.Addr
	targets  []model.RouteTarget
	sequence uint32
}

// evpnState is the speaker's part in EVPN. The speaker's mutex guards it, but not the table, which has
// its own.
type evpnState struct {
	table   *evpnTable
	config  model.EVPN
	set     int // how often config has been set
	own     *evpnOwn
	follows bool // a goroutine follows the table
	tell    func(model.EVPNLearned)
	done    chan struct{} // closed with the speaker

	numbers   map[uint32]uint16     // of the segments' own distinguishers
	vtepOf    map[uint32]netip.Addr // of the segments
	sequences map[evpnPlace]uint32
	// fresh are entries that have come, and whose sequence number may still rise: what neighbors tell in
	// the beginning was there before the entry, and what they tell later comes after it.
	fresh map[evpnEntry]bool
	// lost are entries that another VTEP has taken, with the highest number heard of others: they are not
	// told until it gives them up (RFC 7432 15).
	lost   map[evpnEntry]evpnLoss
	status []model.EVPNStatus
}

type evpnEntry struct {
	evpnPlace
	ip netip.Addr
}

// evpnLoss is who has taken an entry, the highest number heard of others since, and that with which the
// entry was lost.
type evpnLoss struct {
	host          model.EVPNHost
	sequence, own uint32
}

func newEVPNState() evpnState {
	return evpnState{table: newEVPNTable(), own: &evpnOwn{}, done: make(chan struct{}), numbers: map[uint32]uint16{},
		sequences: map[evpnPlace]uint32{}, fresh: map[evpnEntry]bool{}, lost: map[evpnEntry]evpnLoss{}}
}

// SetEVPN replaces the segments of which neighbors with the family [model.BGPEVPN] are told, and whose
// routes are learned of them. It does not wait. The first time it comes before [Speaker.Set], or
// neighbors would forget what an earlier process has told. An error says what contradicts itself in e,
// and nothing has changed then.
//
// An entry that comes is told with a sequence number higher than that of others that have its
// address, so that hosts find it here from now on. One that another VTEP takes later is withdrawn, and
// reported as contested; if that gives it up, and it is still an entry here, it is told again.
func (s *Speaker) SetEVPN(e model.EVPN) error {
	if err := checkEVPN(&e); err != nil {
		return err
	}
	e.Segments = slices.Clone(e.Segments)
	for i := range e.Segments {
		segment := &e.Segments[i]
		segment.Entries = slices.Clone(segment.Entries)
		segment.Import, segment.Export = slices.Clone(segment.Import), slices.Clone(segment.Export)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.evpn.replace(e)
	s.importEVPN()
	s.reviseEVPN(s.evpn.table.choose(s.evpn.own))
	s.tellEVPN()
	s.followEVPN()
	return nil
}

// FollowEVPN has a function called with all that other VTEPs tell of this director's segments, now and
// after each change. Calls come one after the other, from a goroutine of their own; what changes during
// one makes one call after it. It is for one follower, and before the speaker is closed.
func (s *Speaker) FollowEVPN(tell func(model.EVPNLearned)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evpn.tell = tell
	s.followEVPN()
	s.evpn.table.note()
}

// checkEVPN says what contradicts itself.
func checkEVPN(e *model.EVPN) error {
	vnis, distinguishers := map[uint32]bool{}, map[model.RouteDistinguisher]uint32{}
	var errs []error
	for i := range e.Segments {
		s := &e.Segments[i]
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("evpn: segment of VNI %d: "+format, append([]any{s.VNI}, args...)...))
		}
		switch other, dup := distinguishers[s.Distinguisher]; {
		case s.VNI == 0 || s.VNI > model.MaxVNI:
			wrong("the VNI is not from 1 to %d", model.MaxVNI)
		case vnis[s.VNI]:
			wrong("it is there twice")
		case dup && !s.Distinguisher.IsZero():
			wrong("its distinguisher %v is also that of VNI %d", s.Distinguisher, other)
		}
		vnis[s.VNI], distinguishers[s.Distinguisher] = true, s.VNI
		if !canBeVTEP(s.VTEP) || s.VTEP.Is4In6() || s.VTEP.Zone() != "" {
			wrong("%v cannot be the address of a VTEP", s.VTEP)
		}
		if len(s.Export) > maxTargets || len(s.Import) > maxTargets {
			wrong("it has more than %d route targets", maxTargets)
		}
		entries := map[model.EVPNEntry]bool{}
		for _, entry := range s.Entries {
			entry.Sequence = 0
			switch ip := entry.IP; {
			case entry.MAC.IsZero() || entry.MAC[0]&1 != 0:
				wrong("%x is no MAC address of a host", entry.MAC[:])
			case ip.IsValid() && (ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() || ip.Is4In6() || ip.Zone() != ""):
				wrong("%v is no IP address of a host", ip)
			case entries[entry]:
				wrong("%v %v is there twice", entry.MAC, ip)
			}
			entries[entry] = true
		}
	}
	if len(e.Segments) > math.MaxUint16 {
		errs = append(errs, fmt.Errorf("evpn: %d segments are more than %d", len(e.Segments), math.MaxUint16))
	}
	return errors.Join(errs...)
}

// replace takes a new configuration, and notes which entries are new in it.
func (e *evpnState) replace(config model.EVPN) {
	before := map[evpnEntry]bool{}
	for entry := range entriesOf(&e.config) {
		before[entry] = true
	}
	places, addresses := map[evpnPlace]bool{}, map[evpnAddress]bool{}
	there, vnis := map[evpnEntry]bool{}, map[uint32]bool{}
	for entry := range entriesOf(&config) {
		places[entry.evpnPlace], there[entry] = true, true
		if entry.ip.IsValid() {
			addresses[evpnAddress{entry.vni, entry.ip}] = true
		}
		if !before[entry] {
			e.fresh[entry] = true
		}
	}
	for i := range config.Segments {
		vnis[config.Segments[i].VNI] = true
	}
	for entry := range e.fresh {
		if !there[entry] {
			delete(e.fresh, entry)
		}
	}
	for place := range e.sequences {
		if !places[place] {
			delete(e.sequences, place)
		}
	}
	for vni := range e.numbers {
		if !vnis[vni] {
			delete(e.numbers, vni)
		}
	}
	e.config, e.vtepOf = config, map[uint32]netip.Addr{}
	e.set++
	for i := range config.Segments {
		e.vtepOf[config.Segments[i].VNI] = config.Segments[i].VTEP
	}
	e.own = &evpnOwn{places: places, addresses: addresses}
	e.number()
}

// entriesOf yields all entries of all segments, with their least sequence numbers.
func entriesOf(e *model.EVPN) func(func(evpnEntry, uint32) bool) {
	return func(yield func(evpnEntry, uint32) bool) {
		for i := range e.Segments {
			s := &e.Segments[i]
			for _, entry := range s.Entries {
				if !yield(evpnEntry{evpnPlace{s.VNI, entry.MAC}, entry.IP}, entry.Sequence) {
					return
				}
			}
		}
	}
}

// number gives each segment a number for its distinguisher, and leaves it to it: the last 16 bits of the
// VNI, or the next free number. So a process that starts has the numbers of the one before.
func (e *evpnState) number() {
	used := map[uint16]bool{}
	for _, n := range e.numbers {
		used[n] = true
	}
	for i := range e.config.Segments {
		vni := e.config.Segments[i].VNI
		if _, has := e.numbers[vni]; has {
			continue
		}
		n := uint16(vni)
		for n == 0 || used[n] {
			n++
		}
		e.numbers[vni], used[n] = n, true
	}
}

// importEVPN tells the table which routes to keep. The mutex is held.
func (s *Speaker) importEVPN() {
	s.evpn.table.set(importsOf(&s.evpn.config, s.config.RouterID))
}

// reviseEVPN makes of the configuration, and of what has been learned, what neighbors are told. It
// reports whether that has changed. The mutex is held.
func (s *Speaker) reviseEVPN(chosen evpnChosen) (changed bool) {
	e := &s.evpn
	e.claim(&chosen)
	routes := e.routes(s.config.ASN, s.config.RouterID)
	if changed = !reflect.DeepEqual(routes, e.own.routes); changed {
		e.own = &evpnOwn{routes, e.own.places, e.own.addresses}
	}
	e.status = e.report(&chosen.learned, s.config.ASN, s.config.RouterID)
	return changed
}

// claim gives entries their sequence numbers: those that are fresh, or that others have given up, more than
// the highest of others. All routes of a MAC address have the same (RFC 9721 5): FRR passes over one
// with a lower number than it knows of the address.
func (e *evpnState) claim(chosen *evpnChosen) {
	fresh := e.fresh
	for entry, least := range entriesOf(&e.config) {
		number := max(e.sequences[entry.evpnPlace], least)
		rivals := chosen.rivals(entry)
		if was, lost := e.lost[entry]; lost && len(rivals) == 0 {
			number = max(number, next(was.sequence))
		}
		for _, r := range rivals {
			if fresh[entry] {
				number = max(number, next(r.sequence))
			}
		}
		e.sequences[entry.evpnPlace] = number
	}
	if chosen.learned.Complete {
		e.fresh = map[evpnEntry]bool{}
	}
	lost := map[evpnEntry]evpnLoss{}
	for entry, least := range entriesOf(&e.config) {
		number := e.sequences[entry.evpnPlace]
		was, lostBefore := e.lost[entry]
		if lostBefore && !fresh[entry] {
			number = max(least, was.own) // another entry of the MAC address may have raised it since
		}
		if r := chosen.winner(entry, number, e.vtepOf[entry.vni]); r != nil {
			lost[entry] = evpnLoss{host: r.host, sequence: max(r.sequence, was.sequence), own: number}
		}
	}
	e.lost = lost
}

// rivals are the routes of others for an entry's addresses.
func (c *evpnChosen) rivals(entry evpnEntry) (list []evpnRival) {
	if r, there := c.ofMAC[entry.evpnPlace]; there {
		list = append(list, r)
	}
	if r, there := c.ofIP[evpnAddress{entry.vni, entry.ip}]; there {
		list = append(list, r)
	}
	return list
}

// winner returns the one of others that other VTEPs believe, and not this director's entry with a number;
// nil: there is none.
func (c *evpnChosen) winner(entry evpnEntry, number uint32, vtep netip.Addr) *evpnRival {
	for _, r := range c.rivals(entry) {
		other := &r.host
		if other.Static || other.Sequence > number || other.Sequence == number && other.VTEP.Less(vtep) {
			return &r
		}
	}
	return nil
}

// next returns the next sequence number; after the last one there is none.
func next(sequence uint32) uint32 {
	if sequence == math.MaxUint32 {
		return sequence
	}
	return sequence + 1
}

// routes returns the routes of all segments.
func (e *evpnState) routes(asn uint32, id netip.Addr) (routes []evpnOwnRoute) {
	if !id.IsValid() {
		return nil // there is no BGP yet
	}
	for i := range e.config.Segments {
		s := &e.config.Segments[i]
		common := evpnOwnRoute{vni: s.VNI, vtep: s.VTEP, targets: exports(s, asn)}
		common.distinguisher = e.distinguisher(s, id).Bytes()
		multicast := common
		multicast.kind, multicast.ip = evpnMulticast, s.VTEP
		routes = append(routes, multicast)
		for _, entry := range s.Entries {
			if _, lost := e.lost[evpnEntry{evpnPlace{s.VNI, entry.MAC}, entry.IP}]; lost {
				continue
			}
			host := common
			host.kind, host.mac, host.ip = evpnHost, entry.MAC, entry.IP
			host.sequence = e.sequences[evpnPlace{s.VNI, entry.MAC}]
			routes = append(routes, host)
		}
	}
	return routes
}

func (e *evpnState) distinguisher(s *model.EVPNSegment, id netip.Addr) model.RouteDistinguisher {
	if !s.Distinguisher.IsZero() || !id.Is4() {
		return s.Distinguisher
	}
	return model.NewRouteDistinguisher(id, e.numbers[s.VNI])
}

// exports returns the targets that a segment's routes are told with.
func exports(s *model.EVPNSegment, asn uint32) []model.RouteTarget {
	if len(s.Export) > 0 {
		return s.Export
	}
	return []model.RouteTarget{model.NewRouteTarget(asn&math.MaxUint16, s.VNI)}
}

// report says what there is of each segment.
func (e *evpnState) report(learned *model.EVPNLearned, asn uint32, id netip.Addr) []model.EVPNStatus {
	all := make([]model.EVPNStatus, len(e.config.Segments))
	of := map[uint32]*model.EVPNStatus{}
	for i := range e.config.Segments {
		s := &e.config.Segments[i]
		all[i] = model.EVPNStatus{VNI: s.VNI, VTEP: s.VTEP, Distinguisher: e.distinguisher(s, id), Export: exports(s, asn), Entries: len(s.Entries)}
		of[s.VNI] = &all[i]
	}
	for i := range learned.Hosts {
		of[learned.Hosts[i].VNI].Hosts++
	}
	for i := range learned.VTEPs {
		of[learned.VTEPs[i].VNI].VTEPs++
	}
	for entry := range entriesOf(&e.config) { // in their order
		if r, lost := e.lost[entry]; lost && len(of[entry.vni].Contested) < maxContested {
			of[entry.vni].Contested = append(of[entry.vni].Contested, r.host)
		}
	}
	return all
}

// followEVPN starts the goroutine that follows what is learned, once. The mutex is held.
func (s *Speaker) followEVPN() {
	if s.evpn.follows || s.closed {
		return
	}
	s.evpn.follows = true
	s.running.Go(func() {
		var last *model.EVPNLearned
		for {
			select {
			case <-s.evpn.done:
				return
			case <-s.evpn.table.changed:
			}
			begun := time.Now()
			learned, tell := s.learnEVPN()
			if tell != nil && (last == nil || !reflect.DeepEqual(*last, learned)) {
				last = &learned
				tell(learned)
			}
			select {
			case <-s.evpn.done:
				return
			case <-time.After(max(evpnPause, time.Since(begun))): // a large table does not take all of a CPU
			}
		}
	})
}

// learnEVPN chooses among what neighbors have told, and has them told what follows from that. It returns
// what has been chosen, and who follows that.
func (s *Speaker) learnEVPN() (model.EVPNLearned, func(model.EVPNLearned)) {
	s.mu.Lock()
	own, set := s.evpn.own, s.evpn.set
	s.mu.Unlock()
	chosen := s.evpn.table.choose(own) // of many routes it takes a while, during which the speaker answers
	s.mu.Lock()
	defer s.mu.Unlock()
	if set != s.evpn.set { // other entries than those of whose rivals it knows
		chosen = s.evpn.table.choose(s.evpn.own)
	}
	if s.reviseEVPN(chosen) {
		s.tellEVPN()
	}
	return chosen.learned, s.evpn.tell
}

// tellEVPN has sessions tell what is to be told now, and ask for what is wanted now. The mutex is
// held.
func (s *Speaker) tellEVPN() {
	for i := range s.config.Neighbors {
		n := &s.config.Neighbors[i]
		if one := s.sessions[n.Name()]; one != nil && slices.Contains(n.Families, model.BGPEVPN) {
			one.set(s.want(n))
		}
	}
}
