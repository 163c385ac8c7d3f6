package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

const (
	// evpnLimit is how many routes of a neighbor are kept, so that it cannot take all memory.
	evpnLimit = 1 << 16

	// stalePatience is how long routes of a lost session stay when there is a new one, and the neighbor
	// does not say that it has told all.
	stalePatience = 6 * time.Minute

	// maxTargets is how many route targets of a route are remembered, of those that segments import.
	maxTargets = 16
)

// evpnTable keeps the EVPN routes that neighbors have told of this director's segments.
type evpnTable struct {
	limit   int
	changed chan struct{} // has room for one

	mu      sync.Mutex
	imports *evpnImports
	told    map[string]*evpnTold // by the names of neighbors
}

// evpnTold is what a neighbor has told.
type evpnTold struct {
	routes    map[evpnKey]evpnKept
	session   *evpnFeed // nil: there is none, and what is left is stale
	stale     int
	end       *time.Timer // of stale routes
	whole     bool        // all routes have been told
	full      bool        // there were more than fit
	refresh   bool        // it has to tell all again
	lacks     bool        // routes are missing, and it cannot be asked for them
	malformed uint64
	problem   string // of a malformed route
	disabled  string // why nothing is taken until there is another session

	peer evpnPeer
}

// evpnPeer is what the choice among routes needs to know of a neighbor.
type evpnPeer struct {
	name      string
	internal  bool
	routerID  netip.Addr
	refreshes bool // it can be asked to tell its routes again
	ends      bool // it says when it has told all
	resumes   bool // it has kept its routes over its restart
}

// evpnKept is a route that is kept.
type evpnKept struct {
	path     *evpnPath
	segments []uint32 // VNIs of this director's that it is in
	label    uint32
	stale    bool
}

// evpnImports are the segments whose routes are kept.
type evpnImports struct {
	vnis  map[uint32]string // each VNI's import targets, to see a change
	exact map[model.RouteTarget][]uint32
	auto  map[uint32]bool // VNIs of automatic targets
	own   map[netip.Addr]bool
	id    netip.Addr // this director's router-id
}

func newEVPNTable() *evpnTable {
	return &evpnTable{limit: evpnLimit, changed: make(chan struct{}, 1), imports: importsOf(&model.EVPN{}, netip.Addr{}), told: map[string]*evpnTold{}}
}

func importsOf(e *model.EVPN, id netip.Addr) *evpnImports {
	i := &evpnImports{vnis: map[uint32]string{}, exact: map[model.RouteTarget][]uint32{}, auto: map[uint32]bool{}, own: map[netip.Addr]bool{}, id: id}
	for n := range e.Segments {
		s := &e.Segments[n]
		i.own[s.VTEP] = true
		i.vnis[s.VNI] = fmt.Sprint(s.Import)
		i.auto[s.VNI] = len(s.Import) == 0
		for _, t := range s.Import {
			i.exact[t] = append(i.exact[t], s.VNI)
		}
	}
	return i
}

// matches reports whether a target is one of a segment's.
func (i *evpnImports) matches(t model.RouteTarget) bool {
	return i.auto[t.VNI()] || len(i.exact[t]) > 0
}

// segments returns the sorted VNIs that a route is imported into. One with an Ethernet tag is of a bundle
// of segments that have the same targets: then its label says which one it is (RFC 7432 6.3).
func (i *evpnImports) segments(path *evpnPath, tag, label uint32) (vnis []uint32) {
	for _, t := range path.targets {
		if vni := t.VNI(); i.auto[vni] {
			vnis = append(vnis, vni)
		}
		vnis = append(vnis, i.exact[t]...)
	}
	if tag != 0 {
		vnis = slices.DeleteFunc(vnis, func(vni uint32) bool { return vni != label })
	}
	slices.Sort(vnis)
	return slices.Clip(slices.Compact(vnis))
}

// isOwn reports whether a route is of this director: routers may tell it what it has told them. The
// AS path is not asked, because directors of a group have the same AS, and what they learn they tell
// nobody.
func (i *evpnImports) isOwn(p *evpnPath) bool {
	return i.own[p.nextHop] || p.originator.IsValid() && p.originator == i.id || p.pmsi != nil && i.own[p.pmsi.endpoint]
}

func (t *evpnTable) note() {
	select {
	case t.changed <- struct{}{}:
	default: // the one before has not been seen yet
	}
}

// set replaces the segments whose routes are kept. Routes of new ones were not kept: neighbors
// have to tell them again. It reports whether there are such segments.
func (t *evpnTable) set(imports *evpnImports) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for vni, targets := range imports.vnis {
		before, had := t.imports.vnis[vni]
		more = more || !had || before != targets
	}
	t.imports = imports
	for _, told := range t.told {
		for key, kept := range told.routes {
			kept.segments = imports.segments(kept.path, key.tag, kept.label)
			if len(kept.segments) == 0 || imports.isOwn(kept.path) {
				told.remove(key)
				continue
			}
			told.routes[key] = kept
		}
		if more && told.session != nil {
			told.ask()
		}
	}
	t.note()
	return more
}

// ask has the neighbor tell its routes again.
func (told *evpnTold) ask() {
	told.refresh, told.lacks = told.peer.refreshes, !told.peer.refreshes
}

func (told *evpnTold) remove(key evpnKey) {
	if told.routes[key].stale {
		told.stale--
	}
	delete(told.routes, key)
}

func (told *evpnTold) removeStale() {
	if told.end != nil {
		told.end.Stop()
	}
	for key, kept := range told.routes {
		if kept.stale {
			told.remove(key)
		}
	}
}

// evpnFeed is a session by which a neighbor tells routes.
type evpnFeed struct {
	table *evpnTable
	told  *evpnTold
}

// begin begins a session. What is left of the one before stays until the neighbor has told all, if it
// says that it has gone on forwarding (RFC 4724 4.2).
func (t *evpnTable) begin(peer evpnPeer) *evpnFeed {
	t.mu.Lock()
	defer t.mu.Unlock()
	told := t.told[peer.name]
	if told == nil {
		told = &evpnTold{routes: map[evpnKey]evpnKept{}}
		t.told[peer.name] = told
	}
	f := &evpnFeed{t, told}
	told.session, told.peer = f, peer
	told.whole, told.full, told.refresh, told.lacks = false, false, false, false
	told.disabled, told.problem = "", ""
	if !peer.resumes {
		told.removeStale()
	} else if told.stale > 0 {
		t.expire(told, f, stalePatience)
	}
	t.note()
	return f
}

// expire removes stale routes after a time, unless the session is another one by then.
func (t *evpnTable) expire(told *evpnTold, session *evpnFeed, after time.Duration) {
	if told.end != nil {
		told.end.Stop()
	}
	told.end = time.AfterFunc(after, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if told.session == session {
			told.removeStale()
			t.note()
		}
	})
}

// finish ends the session. Its routes stay for a time as stale ones; 0: they go at once. Those
// that have been stale before go, too.
func (f *evpnFeed) finish(keep time.Duration) {
	t := f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	told := f.told
	if told.session != f {
		return
	}
	told.session, told.whole = nil, false
	told.removeStale()
	if keep > 0 {
		for key, kept := range told.routes {
			kept.stale = true
			told.routes[key] = kept
		}
		told.stale = len(told.routes)
		t.expire(told, nil, keep)
	} else {
		clear(told.routes)
	}
	t.note()
}

// forget removes all that a neighbor has told.
func (t *evpnTable) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if told := t.told[name]; told != nil {
		told.removeStale()
		told.session = nil
		delete(t.told, name)
		t.note()
	}
}

// close ends what waits.
func (t *evpnTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, told := range t.told {
		if told.end != nil {
			told.end.Stop()
		}
	}
}

// apply changes what the neighbor has told. It reports whether the neighbor has to be asked to tell
// all again.
func (f *evpnFeed) apply(u *evpnUpdate) (ask bool) {
	t, told := f.table, f.told
	t.mu.Lock()
	defer t.mu.Unlock()
	if told.session != f || told.disabled != "" {
		return false
	}
	told.malformed += uint64(u.malformed)
	if u.problem != "" {
		told.problem = u.problem
	}
	for _, key := range u.withdrawn {
		told.remove(key)
	}
	t.announce(told, u)
	if told.full && !told.refresh && len(told.routes) <= t.limit-t.limit/8 {
		told.full = false
		told.ask()
		ask = told.refresh
	}
	if u.end {
		told.whole = true
		told.removeStale()
	}
	t.note()
	return ask
}

// announce keeps the routes of an UPDATE that are of segments.
func (t *evpnTable) announce(told *evpnTold, u *evpnUpdate) {
	if len(u.announced) == 0 {
		return
	}
	path := u.path
	path.targets = nil
	for _, target := range u.path.targets {
		if t.imports.matches(target) && len(path.targets) < maxTargets && !slices.Contains(path.targets, target) {
			path.targets = append(path.targets, target)
		}
	}
	taken := !path.otherwise && !t.imports.isOwn(&path)
	untagged := t.imports.segments(&path, 0, 0)
	for _, r := range u.announced {
		label, usable := r.label, taken
		if r.kind == evpnMulticast {
			label, usable = path.pmsi.label, taken && path.pmsi.kind == uint8(gobgp.PMSI_TUNNEL_TYPE_INGRESS_REPL)
		}
		segments := untagged
		if r.tag != 0 {
			segments = t.imports.segments(&path, r.tag, label)
		}
		if !usable || len(segments) == 0 {
			told.remove(r.evpnKey) // it may have been another one before
			continue
		}
		before, known := told.routes[r.evpnKey]
		if !known && len(told.routes) >= t.limit {
			told.full = true
			continue
		}
		if before.stale {
			told.stale--
		}
		told.routes[r.evpnKey] = evpnKept{path: &path, segments: segments, label: label}
	}
}

// quiet takes a KEEPALIVE of a neighbor that does not say when it has told all: it sends the first one
// after its routes.
func (f *evpnFeed) quiet() {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	if told := f.told; told.session == f && !told.peer.ends && !told.whole {
		told.whole = true
		told.removeStale()
		f.table.note()
	}
}

// disable forgets what the neighbor has told, and takes nothing more in this session.
func (f *evpnFeed) disable(why string) {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	if told := f.told; told.session == f {
		told.removeStale()
		clear(told.routes)
		told.disabled, told.stale, told.whole = why, 0, true
		f.table.note()
	}
}

// takeRefresh reports whether the neighbor has to be asked to tell all again, once.
func (f *evpnFeed) takeRefresh() bool {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	ask := f.told.session == f && f.told.refresh
	f.told.refresh = false
	return ask
}

// status says what is kept of a neighbor.
func (t *evpnTable) status(name string) (s model.BGPEVPNStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	told := t.told[name]
	if told == nil {
		return s
	}
	s.Received, s.Stale, s.Malformed = len(told.routes), told.stale, told.malformed
	switch {
	case told.disabled != "":
		s.Problem = fmt.Sprintf("its evpn routes cannot be read, and are ignored until the session begins again: %s", told.disabled)
	case told.full:
		s.Problem = fmt.Sprintf("it has more than %d evpn routes of this director's segments: the others are ignored", t.limit)
	case told.lacks:
		s.Problem = "it cannot be asked for the evpn routes of segments that have changed (route refresh, RFC 2918): they are missing until the session begins again"
	case told.problem != "":
		s.Problem = fmt.Sprintf("it has sent %d malformed evpn routes, which count as withdrawn; the last one: %s", told.malformed, told.problem)
	}
	return s
}

// evpnChosen are the routes that count.
type evpnChosen struct {
	learned model.EVPNLearned
	// ofMAC and ofIP are, of the addresses that are asked for, the best routes of others, and the
	// highest sequence numbers.
	ofMAC map[evpnPlace]evpnRival
	ofIP  map[evpnAddress]evpnRival
}

type (
	evpnPlace struct {
		vni uint32
		mac model.MAC
	}
	evpnAddress struct {
		vni uint32
		ip  netip.Addr
	}
	evpnRival struct {
		host     model.EVPNHost
		sequence uint32
	}
)

// candidate is a route in the choice.
type candidate struct {
	key  *evpnKey
	kept *evpnKept
	peer *evpnPeer
}

// better orders the routes of the same address. Between VTEPs the higher sequence number is the newer
// place, and after that the lower address of the VTEP decides, so that all VTEPs choose alike (RFC
// 7432 15.1); between routes of the same VTEP, which several neighbors have told, it is BGP's own order
// (RFC 4271 9.1.2, RFC 4456 9). What is left of a lost session comes last.
func better(a, b candidate) int {
	p, q := a.kept.path, b.kept.path
	return cmp.Or(
		before(!a.kept.stale, !b.kept.stale),
		before(p.static, q.static),
		cmp.Compare(q.sequence, p.sequence),
		a.vtep().Compare(b.vtep()),
		cmp.Compare(q.localPref, p.localPref),
		cmp.Compare(p.asPath, q.asPath),
		cmp.Compare(p.origin, q.origin),
		cmp.Compare(p.med, q.med),
		before(!a.peer.internal, !b.peer.internal),
		a.origin().Compare(b.origin()),
		cmp.Compare(p.clusters, q.clusters),
		cmp.Compare(a.peer.name, b.peer.name),
		slices.Compare(a.key.distinguisher[:], b.key.distinguisher[:]),
		slices.Compare(a.key.mac[:], b.key.mac[:]),
		a.key.ip.Compare(b.key.ip),
		cmp.Compare(a.key.tag, b.key.tag),
	)
}

func (c candidate) vtep() netip.Addr {
	if c.key.kind == evpnMulticast {
		return c.kept.path.pmsi.endpoint
	}
	return c.kept.path.nextHop
}

// origin is the router-id of the speaker that has told a route first, as far as it is known.
func (c candidate) origin() netip.Addr {
	if c.kept.path.originator.IsValid() {
		return c.kept.path.originator
	}
	return c.peer.routerID
}

// before orders what holds before what does not.
func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// choose returns the routes that count. A MAC address is where the best of its routes says, also
// those with IP addresses; an IP address has the MAC address that the best of its routes says, and is
// where that is: a host that moves is at first only told by its MAC address.
func (t *evpnTable) choose(own *evpnOwn) evpnChosen {
	t.mu.Lock()
	defer t.mu.Unlock()
	macs, ips, vteps := map[evpnPlace]candidate{}, map[evpnAddress]candidate{}, map[evpnAddress]candidate{}
	chosen := evpnChosen{ofMAC: map[evpnPlace]evpnRival{}, ofIP: map[evpnAddress]evpnRival{}}
	sessions, whole := 0, 0
	for _, told := range t.told {
		if told.session != nil {
			sessions++
		}
		if told.session != nil && told.whole {
			whole++
		}
		for key, kept := range told.routes {
			c := candidate{&key, &kept, &told.peer}
			for _, vni := range kept.segments {
				if key.kind == evpnMulticast {
					take(vteps, evpnAddress{vni, c.vtep()}, c)
					continue
				}
				place, address := evpnPlace{vni, key.mac}, evpnAddress{vni, key.ip}
				take(macs, place, c)
				if own.places[place] {
					rival(chosen.ofMAC, place, c)
				}
				if key.ip.IsValid() {
					take(ips, address, c)
				}
				if own.addresses[address] {
					rival(chosen.ofIP, address, c)
				}
			}
		}
	}
	chosen.learned = learned(macs, ips, vteps)
	chosen.learned.Complete = sessions > 0 && whole == sessions
	for place, r := range chosen.ofMAC {
		r.host = hostOf(place.vni, netip.Addr{}, macs[place])
		chosen.ofMAC[place] = r
	}
	for address, r := range chosen.ofIP {
		r.host = hostOf(address.vni, address.ip, ips[address])
		chosen.ofIP[address] = r
	}
	return chosen
}

// take keeps the better one of two candidates.
func take[K comparable](best map[K]candidate, of K, c candidate) {
	if other, there := best[of]; !there || better(c, other) < 0 {
		best[of] = c
	}
}

func rival[K comparable](all map[K]evpnRival, of K, c candidate) {
	r := all[of]
	r.sequence = max(r.sequence, c.kept.path.sequence)
	all[of] = r
}

func hostOf(vni uint32, ip netip.Addr, c candidate) model.EVPNHost {
	return model.EVPNHost{VNI: vni, MAC: c.key.mac, IP: ip, VTEP: c.vtep(), Label: c.kept.label,
		Sequence: c.kept.path.sequence, Static: c.kept.path.static}
}

// learned writes down the best routes, sorted.
func learned(macs map[evpnPlace]candidate, ips, vteps map[evpnAddress]candidate) (l model.EVPNLearned) {
	l.Hosts, l.VTEPs = make([]model.EVPNHost, 0, len(macs)+len(ips)), make([]model.EVPNVTEP, 0, len(vteps))
	for place, c := range macs {
		l.Hosts = append(l.Hosts, hostOf(place.vni, netip.Addr{}, c))
	}
	for address, c := range ips {
		l.Hosts = append(l.Hosts, hostOf(address.vni, address.ip, macs[evpnPlace{address.vni, c.key.mac}]))
	}
	for address, c := range vteps {
		l.VTEPs = append(l.VTEPs, model.EVPNVTEP{VNI: address.vni, VTEP: address.ip, Label: c.kept.label})
	}
	slices.SortFunc(l.Hosts, func(a, b model.EVPNHost) int {
		return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.IP.Compare(b.IP), slices.Compare(a.MAC[:], b.MAC[:]))
	})
	slices.SortFunc(l.VTEPs, func(a, b model.EVPNVTEP) int {
		return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.VTEP.Compare(b.VTEP))
	})
	return l
}
