package bgp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// saying is a route that a VTEP tells, as tests write it.
type saying struct {
	vtep, host int        // whose MAC address it is
	ip         netip.Addr // none: only the MAC address
	sequence   uint32
	change     func(*evpnPath) // what else differs
}

func ip(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, byte(n >> 8), byte(n)}) }

func (s saying) key() evpnKey {
	return evpnKey{kind: evpnHost, distinguisher: model.NewRouteDistinguisher(vtep(s.vtep), 2).Bytes(), mac: mac(s.host), ip: s.ip}
}

// by returns the UPDATE that says it.
func (s saying) by() *evpnUpdate {
	u := &evpnUpdate{announced: []evpnRoute{{s.key(), 5001}}}
	u.path = evpnPath{nextHop: vtep(s.vtep), targets: []model.RouteTarget{model.NewRouteTarget(65000+uint32(s.vtep), 5001)}, localPref: 100, sequence: s.sequence}
	if s.change != nil {
		s.change(&u.path)
	}
	return u
}

// all is the UPDATE in which a VTEP wants what is for all.
func all(n int) *evpnUpdate {
	u := saying{vtep: n}.by()
	u.announced[0] = evpnRoute{evpnKey: evpnKey{kind: evpnMulticast, distinguisher: u.announced[0].distinguisher, ip: vtep(n)}}
	u.path.pmsi = &evpnTunnel{kind: 6, label: 5001, endpoint: vtep(n)}
	return u
}

var endOfAll = &evpnUpdate{end: true}

// segment is one of VNI 5001 at VTEP 1.
func segment(entries ...model.EVPNEntry) *model.EVPN {
	return &model.EVPN{Segments: []model.EVPNSegment{{VNI: 5001, VTEP: vtep(1), Entries: entries}}}
}

func newTable() *evpnTable {
	t := newEVPNTable()
	t.set(importsOf(segment(), vtep(1)))
	return t
}

func (t *evpnTable) hear(name string, resumes bool) *evpnFeed {
	return t.begin(evpnPeer{name: name, routerID: vtep(200), internal: true, refreshes: true, ends: true, resumes: resumes})
}

// says writes down what is learned: the hosts of each VTEP, and which VTEPs want what is for all.
func (t *evpnTable) says() string {
	var list []string
	l := t.choose(&evpnOwn{}).learned
	for _, h := range l.Hosts {
		text := fmt.Sprintf("%d", h.MAC[5])
		if h.IP.IsValid() {
			text += fmt.Sprintf("=%v", h.IP)
		}
		list = append(list, fmt.Sprintf("%s@%d", text, h.VTEP.As4()[3]))
	}
	for _, v := range l.VTEPs {
		list = append(list, fmt.Sprintf("all@%d", v.VTEP.As4()[3]))
	}
	if l.Complete {
		list = append(list, "complete")
	}
	return strings.Join(list, " ")
}

// What neighbors tell is kept until it is replaced, withdrawn, or told to be of another segment; what is
// of no segment, of this director, or wanted in another encapsulation is not.
func TestEVPNTable(t *testing.T) {
	table := newTable()
	a, b := table.hear("a", false), table.hear("b", false)
	check := func(when, want string) {
		t.Helper()
		if got := table.says(); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	check("nothing", "")
	a.apply(saying{vtep: 2, host: 1}.by())
	a.apply(saying{vtep: 2, host: 1, ip: ip(1)}.by())
	a.apply(all(2))
	check("a host", "1@2 1=192.168.0.1@2 all@2")
	b.apply(saying{vtep: 2, host: 1, ip: ip(1)}.by())
	a.apply(endOfAll)
	check("told by two, one of which has told all", "1@2 1=192.168.0.1@2 all@2")
	b.apply(endOfAll)
	check("both have told all", "1@2 1=192.168.0.1@2 all@2 complete")
	a.apply(&evpnUpdate{withdrawn: []evpnKey{saying{vtep: 2, host: 1, ip: ip(1)}.key()}})
	check("withdrawn by one", "1@2 1=192.168.0.1@2 all@2 complete")
	b.finish(0)
	check("the other one is gone", "1@2 all@2 complete")
	a.apply(saying{vtep: 3, host: 1, ip: ip(1), sequence: 1}.by())
	check("the host moves, and its old route is still there", "1@3 1=192.168.0.1@3 all@2 complete")
	a.apply(&evpnUpdate{withdrawn: []evpnKey{saying{vtep: 2, host: 1}.key()}})
	check("the old one is withdrawn", "1@3 1=192.168.0.1@3 all@2 complete")

	other := func(p *evpnPath) { p.targets = []model.RouteTarget{model.NewRouteTarget(65003, 5002)} }
	for name, s := range map[string]saying{
		"of another segment":  {vtep: 4, host: 4, change: other},
		"in GENEVE":           {vtep: 4, host: 4, change: func(p *evpnPath) { p.otherwise = true }},
		"of this VTEP":        {vtep: 1, host: 4},
		"told by this one":    {vtep: 4, host: 4, change: func(p *evpnPath) { p.originator = vtep(1) }},
		"of another form":     {vtep: 4, host: 4, change: func(p *evpnPath) { p.targets = []model.RouteTarget{model.NewRouteTarget(4200000001, 5001)} }},
		"without any targets": {vtep: 4, host: 4, change: func(p *evpnPath) { p.targets = nil }},
	} {
		a.apply(saying{vtep: 4, host: 4}.by())
		check("a host at 4", "1@3 4@4 1=192.168.0.1@3 all@2 complete")
		a.apply(s.by())
		if s.vtep == 1 {
			a.apply(&evpnUpdate{withdrawn: []evpnKey{saying{vtep: 4, host: 4}.key()}})
		}
		check("now "+name, "1@3 1=192.168.0.1@3 all@2 complete")
	}
	a.apply(saying{vtep: 5, host: 5, change: func(p *evpnPath) {
		p.targets = []model.RouteTarget{model.NewRouteTarget(65005, 1<<28|5001)} // RFC 8365 5.1.2.1
	}}.by())
	check("a target as RFC 8365 makes it", "1@3 5@5 1=192.168.0.1@3 all@2 complete")
	routes := func(u *evpnUpdate, tag uint32) *evpnUpdate {
		u.announced[0].tag = tag
		return u
	}
	a.apply(routes(saying{vtep: 6, host: 6}.by(), 5001))
	a.apply(routes(saying{vtep: 7, host: 7, change: func(p *evpnPath) {}}.by(), 9))
	check("a bundle's route whose label is the VNI", "1@3 5@5 6@6 7@7 1=192.168.0.1@3 all@2 complete")
	if !table.set(importsOf(&model.EVPN{Segments: []model.EVPNSegment{{VNI: 5001, VTEP: vtep(1), Import: []model.RouteTarget{model.NewRouteTarget(65003, 5001)}}}}, vtep(1))) {
		t.Error("another target is no change")
	}
	check("only what VTEP 3 tells is imported", "1@3 1=192.168.0.1@3 complete")
	if !a.takeRefresh() || a.takeRefresh() {
		t.Error("after a change of targets, the neighbor is not asked once to tell all again")
	}
	table.forget("a")
	check("the neighbor is removed", "")
	a.apply(all(2))
	a.finish(0)
	check("it goes on telling", "")
}

// A route of a bundle of segments is of the one that its label says.
func TestEVPNBundle(t *testing.T) {
	table := newEVPNTable()
	target := []model.RouteTarget{model.NewRouteTarget(65000, 1)}
	table.set(importsOf(&model.EVPN{Segments: []model.EVPNSegment{{VNI: 5001, VTEP: vtep(1), Import: target}, {VNI: 5002, VTEP: vtep(1), Import: target}}}, vtep(1)))
	a := table.hear("a", false)
	tell := func(tag, label uint32) {
		u := saying{vtep: 2, host: int(tag), change: func(p *evpnPath) { p.targets = target }}.by()
		u.announced[0].tag, u.announced[0].label = tag, label
		a.apply(u)
	}
	tell(1, 5001)
	tell(2, 5002)
	tell(3, 5003)
	tell(0, 7000)
	var got []string
	for _, h := range table.choose(&evpnOwn{}).learned.Hosts {
		got = append(got, fmt.Sprintf("%d in %d by %d", h.MAC[5], h.VNI, h.Label))
	}
	if want := "[0 in 5001 by 7000 1 in 5001 by 5001 0 in 5002 by 7000 2 in 5002 by 5002]"; fmt.Sprint(got) != want {
		t.Errorf("the hosts are %v, want %s", got, want)
	}
}

// Between two routes of the same address the newer place counts, then the lower VTEP; what several
// neighbors tell of the same VTEP is chosen from as BGP does. The order in which they come changes
// nothing.
func TestEVPNChoice(t *testing.T) {
	set := func(change func(*evpnPath)) func(*evpnPath) { return change }
	for name, test := range map[string]struct{ first, second saying }{
		"sequence":          {saying{vtep: 3, sequence: 2}, saying{vtep: 2, sequence: 1}},
		"static":            {saying{vtep: 3, change: set(func(p *evpnPath) { p.static = true })}, saying{vtep: 2, sequence: 9}},
		"VTEP":              {saying{vtep: 2, change: set(func(p *evpnPath) { p.localPref = 50 })}, saying{vtep: 3}},
		"local preference":  {saying{vtep: 2, change: set(func(p *evpnPath) { p.localPref, p.asPath = 200, 9 })}, saying{vtep: 2}},
		"AS path":           {saying{vtep: 2, change: set(func(p *evpnPath) { p.origin, p.asPath = 2, 1 })}, saying{vtep: 2, change: set(func(p *evpnPath) { p.asPath = 2 })}},
		"origin":            {saying{vtep: 2, change: set(func(p *evpnPath) { p.med = 9 })}, saying{vtep: 2, change: set(func(p *evpnPath) { p.origin = 1 })}},
		"MED":               {saying{vtep: 2, change: set(func(p *evpnPath) { p.med = 1 })}, saying{vtep: 2, change: set(func(p *evpnPath) { p.med = 2 })}},
		"originator":        {saying{vtep: 2, change: set(func(p *evpnPath) { p.originator, p.clusters = vtep(2), 5 })}, saying{vtep: 2, change: set(func(p *evpnPath) { p.originator = vtep(3) })}},
		"clusters":          {saying{vtep: 2, change: set(func(p *evpnPath) { p.clusters = 1 })}, saying{vtep: 2, change: set(func(p *evpnPath) { p.clusters = 2 })}},
		"name of neighbors": {saying{vtep: 2}, saying{vtep: 2}},
	} {
		for _, swapped := range []bool{false, true} {
			table := newTable()
			feeds := []*evpnFeed{table.hear("a", false), table.hear("b", false)}
			test.first.host, test.second.host = 1, 1
			order := []int{0, 1}
			if swapped {
				slices.Reverse(order)
			}
			for _, i := range order {
				feeds[i].apply([]saying{test.first, test.second}[i].by())
			}
			hosts := table.choose(&evpnOwn{}).learned.Hosts
			kept := table.told["a"].routes[test.first.key()]
			if len(hosts) != 1 || hosts[0].VTEP != vtep(test.first.vtep) || hosts[0].Sequence != test.first.sequence {
				t.Errorf("%s: %+v is chosen", name, hosts)
			}
			rivals := []candidate{}
			for _, n := range []string{"b", "a"} {
				told := table.told[n]
				for key, kept := range told.routes {
					rivals = append(rivals, candidate{&key, &kept, &told.peer})
				}
			}
			if best := slices.MinFunc(rivals, better); best.kept.path != kept.path {
				t.Errorf("%s: the best one is %+v", name, best.kept.path)
			}
		}
	}
}

// In whatever order routes come and go, the choice is that among those that are left.
func TestEVPNChoiceIsOfWhatIsLeft(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		var left []saying
		table, again := newTable(), newTable()
		feeds := map[string][2]*evpnFeed{"a": {table.hear("a", false), again.hear("a", false)}, "b": {table.hear("b", false), again.hear("b", false)}}
		by := map[evpnKey]map[string]saying{}
		for range r.IntN(60) {
			s := saying{vtep: 2 + r.IntN(3), host: r.IntN(3), sequence: uint32(r.IntN(3))}
			if r.IntN(2) == 0 {
				s.ip = ip(r.IntN(3))
			}
			name := string("ab"[r.IntN(2)])
			if by[s.key()] == nil {
				by[s.key()] = map[string]saying{}
			}
			if r.IntN(3) == 0 {
				feeds[name][0].apply(&evpnUpdate{withdrawn: []evpnKey{s.key()}})
				delete(by[s.key()], name)
				continue
			}
			feeds[name][0].apply(s.by())
			by[s.key()][name] = s
		}
		for _, of := range by {
			for name, s := range of {
				feeds[name][1].apply(s.by())
				left = append(left, s)
			}
		}
		one, other := table.choose(&evpnOwn{}).learned, again.choose(&evpnOwn{}).learned
		if !reflect.DeepEqual(one, other) {
			t.Fatalf("of %+v:\n%+v\n%+v", left, one, other)
		}
		places := map[model.MAC]netip.Addr{}
		for _, h := range one.Hosts {
			if !h.IP.IsValid() {
				places[h.MAC] = h.VTEP
			}
		}
		for _, h := range one.Hosts {
			if places[h.MAC] != h.VTEP {
				t.Fatalf("%v is at %v and its address %v at %v", h.MAC, places[h.MAC], h.IP, h.VTEP)
			}
		}
	}
}

// Of a neighbor that tells too much, as much is kept as fits; the rest is asked for when there is
// room again, and until then a problem says that it is missing.
func TestEVPNLimit(t *testing.T) {
	table := newTable()
	table.limit = 100
	a, b := table.hear("a", false), table.hear("b", false)
	for i := range 200 {
		if a.apply(saying{vtep: 2, host: i}.by()) {
			t.Fatal("it is asked to tell all again while there is no room")
		}
	}
	b.apply(saying{vtep: 3, host: 500}.by())
	a.apply(saying{vtep: 2, host: 5, sequence: 7}.by())
	s := table.status("a")
	if s.Received != 100 || !strings.Contains(s.Problem, "more than 100 evpn routes") || table.status("b").Received != 1 || table.status("b").Problem != "" {
		t.Errorf("after too many routes: %+v, %+v", s, table.status("b"))
	}
	if kept := table.told["a"].routes[saying{vtep: 2, host: 5}.key()]; kept.path.sequence != 7 {
		t.Error("a route that is kept is not replaced while there is no room")
	}
	asked := 0
	for i := range 100 {
		if a.apply(&evpnUpdate{withdrawn: []evpnKey{saying{vtep: 2, host: i}.key()}}) {
			asked++
		}
	}
	if s := table.status("a"); asked != 1 || s.Received != 0 || s.Problem != "" || !a.takeRefresh() {
		t.Errorf("with room again it is asked %d times to tell all again: %+v", asked, s)
	}
}

// What a neighbor can make this director keep is bounded, whatever it puts into its routes.
func TestEVPNMemory(t *testing.T) {
	table := newTable()
	a := table.hear("a", false)
	const routes = 1 << 12
	table.limit = routes
	var kept []*evpnUpdate
	for i := range 2 * routes {
		u := saying{vtep: 2, host: i, change: func(p *evpnPath) {
			for as := range 400 { // as many as a message has room for
				p.targets = append(p.targets, model.NewRouteTarget(uint32(as), 5001))
			}
		}}.by()
		kept = append(kept, u)
	}
	took := memlab.Allocated(func() {
		for _, u := range kept {
			a.apply(u)
		}
	})
	if most := routes*1500 + 1<<20; took > most {
		t.Errorf("%d routes took %d bytes, more than %d", routes, took, most)
	}
}

// Routes of a lost session stay for the neighbor's restart time, and from a new session on until it has
// told all, if it says that it forwards on; else they go at once.
func TestEVPNGracefulRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable()
		check := func(when, want string, stale int) {
			t.Helper()
			synctest.Wait()
			if got := table.says(); got != want || table.status("a").Stale != stale {
				t.Errorf("%s: %q and %d stale ones, want %q and %d", when, got, table.status("a").Stale, want, stale)
			}
		}
		tell := func(f *evpnFeed, hosts ...int) {
			for _, host := range hosts {
				f.apply(saying{vtep: 2, host: host}.by())
			}
		}
		a := table.hear("a", false)
		tell(a, 1, 2)
		a.finish(30 * time.Second)
		check("lost", "1@2 2@2", 2)
		time.Sleep(29 * time.Second) // of the test's clock: just before the restart time is over
		check("lost for 29 s", "1@2 2@2", 2)
		time.Sleep(2 * time.Second) // of the test's clock: just after it
		check("lost for 31 s", "", 0)

		a = table.hear("a", false)
		tell(a, 1, 2, 3)
		a.apply(endOfAll)
		check("there again", "1@2 2@2 3@2 complete", 0)
		a.finish(30 * time.Second)
		again := table.hear("a", true)
		tell(a, 9)
		check("what an old session says", "1@2 2@2 3@2", 3)
		tell(again, 1)
		check("in the new session it has told one route", "1@2 2@2 3@2", 2)
		time.Sleep(time.Minute) // of the test's clock: longer than the restart time
		check("a minute later", "1@2 2@2 3@2", 2)
		again.apply(endOfAll)
		check("it has told all", "1@2 complete", 0)

		again.finish(30 * time.Second)
		again = table.hear("a", true)
		tell(again, 2)
		again.finish(30 * time.Second)
		check("lost again before it has told all", "2@2", 1)
		again = table.hear("a", true)
		time.Sleep(stalePatience + time.Second) // of the test's clock
		check("it never says that it has told all", "", 0)

		tell(again, 1)
		again.finish(30 * time.Second)
		again = table.hear("a", false)
		check("it has not kept what it forwards", "", 0)
		tell(again, 1)
		again.finish(0)
		check("it has ended the session", "", 0)
	})
}

// A neighbor that does not say when it has told all has done so with its first KEEPALIVE.
func TestEVPNWithoutEnd(t *testing.T) {
	table := newTable()
	a := table.begin(evpnPeer{name: "a"})
	a.apply(saying{vtep: 2, host: 1}.by())
	before := table.says()
	a.quiet()
	if after := table.says(); before != "1@2" || after != "1@2 complete" {
		t.Errorf("before the KEEPALIVE %q, after it %q", before, after)
	}
	table.set(importsOf(&model.EVPN{}, vtep(1)))
	table.set(importsOf(segment(), vtep(1)))
	if s := table.status("a"); a.takeRefresh() || !strings.Contains(s.Problem, "RFC 2918") {
		t.Errorf("a neighbor that cannot be asked again has no problem: %+v", s)
	}
}
