package bgp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// newEVPN is a speaker that is not connected to anything.
func newEVPN(t *testing.T) *Speaker {
	t.Helper()
	s := New(nil, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	s.Set(model.BGP{ASN: 4200065001, RouterID: vtep(1)}, nil)
	return s
}

// tells writes down the routes of hosts that neighbors are told now, with their sequence numbers.
func (s *Speaker) tells() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, r := range s.evpn.own.routes {
		text := fmt.Sprintf("%d", r.mac[5])
		if r.kind == evpnMulticast {
			text = "all"
		} else if r.ip.IsValid() {
			text += fmt.Sprintf("=%v", r.ip)
		}
		list = append(list, fmt.Sprintf("%s:%d", text, r.sequence))
	}
	return strings.Join(list, " ")
}

func (s *Speaker) waitTells(t *testing.T, when, want string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); s.tells() != want; time.Sleep(2 * time.Millisecond) { // between two looks
		if time.Now().After(end) {
			t.Fatalf("%s: it tells %q, want %q", when, s.tells(), want)
		}
	}
}

func entry(host, address int) model.EVPNEntry {
	e := model.EVPNEntry{MAC: mac(host)}
	if address > 0 {
		e.IP = ip(address)
	}
	return e
}

// A VIP that comes to this director is told with a higher number than those before it had; what is told
// afterwards with a higher one is another's takeover: the VIP is contested, and told again when the other
// one gives it up.
func TestEVPNTakeover(t *testing.T) {
	s := newEVPN(t)
	set := func(entries ...model.EVPNEntry) {
		t.Helper()
		if err := s.SetEVPN(*segment(entries...)); err != nil {
			t.Fatal(err)
		}
	}
	contested := func() (list []string) {
		for _, h := range s.Status().EVPN[0].Contested {
			list = append(list, fmt.Sprintf("%v@%v", h.IP, h.VTEP))
		}
		return list
	}
	set(entry(1, 0), entry(1, 7))
	s.waitTells(t, "without neighbors", "all:0 1:0 1=192.168.0.7:0")
	a := s.evpn.table.hear("a", false)
	a.apply(saying{vtep: 2, host: 2, ip: ip(7), sequence: 4}.by())
	s.waitTells(t, "what a neighbor tells first was there before", "all:0 1:5 1=192.168.0.7:5")
	a.apply(endOfAll)
	a.apply(saying{vtep: 3, host: 3, ip: ip(9), sequence: 1}.by()) // after all is told
	set(entry(1, 0), entry(1, 7), entry(1, 8), entry(1, 9))
	s.waitTells(t, "another address comes", "all:0 1:5 1=192.168.0.7:5 1=192.168.0.8:5 1=192.168.0.9:5")
	set(entry(1, 0), entry(1, 7))
	s.waitTells(t, "addresses go", "all:0 1:5 1=192.168.0.7:5")
	if got := contested(); len(got) > 0 {
		t.Errorf("with the highest number %v are contested", got)
	}

	a.apply(saying{vtep: 2, host: 2, ip: ip(7), sequence: 6}.by())
	for len(contested()) == 0 {
		time.Sleep(2 * time.Millisecond) // between two looks
	}
	if got := fmt.Sprint(contested()); got != "[192.168.0.7@10.0.0.2]" || s.tells() != "all:0 1:5" {
		t.Errorf("another one takes the address: %s are contested, and it is told %s", got, s.tells())
	}
	taken := saying{vtep: 2, host: 2, ip: ip(7), sequence: 8}
	a.apply(taken.by())
	set(entry(1, 0), entry(1, 7)) // it chooses now
	a.apply(&evpnUpdate{withdrawn: []evpnKey{taken.key()}})
	s.waitTells(t, "the other one gives it up", "all:0 1:9 1=192.168.0.7:9")
	a.apply(saying{vtep: 2, host: 2, ip: ip(7), sequence: 20}.by())
	s.waitTells(t, "the other one takes it again", "all:0 1:9")
	a.apply(saying{vtep: 3, host: 3, ip: ip(8), sequence: 30}.by())
	set(entry(1, 0), entry(1, 7), entry(1, 8))
	s.waitTells(t, "another address of the MAC address comes, and rises above it", "all:0 1:31 1=192.168.0.8:31")
	a.apply(&evpnUpdate{withdrawn: []evpnKey{saying{vtep: 3, host: 3, ip: ip(8)}.key()}})
	set(entry(5, 0)) // forgets the numbers
	set(entry(1, 0))
	set(entry(1, 0), entry(1, 7))
	s.waitTells(t, "it is taken back", "all:0 1:21 1=192.168.0.7:21")
	a.apply(saying{vtep: 128, host: 2, ip: ip(7), sequence: 21}.by())
	set(entry(1, 0), entry(1, 7)) // it chooses now
	s.waitTells(t, "a VTEP with a higher address tells the same number", "all:0 1:21 1=192.168.0.7:21")
	a.apply(saying{vtep: 3, host: 1, sequence: 22}.by())
	s.waitTells(t, "the MAC address is taken", "all:0")
	a.apply(&evpnUpdate{withdrawn: []evpnKey{saying{vtep: 3, host: 1}.key()}})
	s.waitTells(t, "the MAC address is given up", "all:0 1:23 1=192.168.0.7:23")
	set(entry(1, 0), model.EVPNEntry{MAC: mac(1), IP: ip(7), Sequence: 100})
	s.waitTells(t, "somebody else counts takeovers", "all:0 1:100 1=192.168.0.7:100")

	// The MAC address itself moves along.
	a.apply(saying{vtep: 2, host: 9, sequence: 2}.by())
	set(entry(9, 0))
	s.waitTells(t, "a MAC address that another has", "all:0 9:3")
	a.apply(saying{vtep: 2, host: 8, sequence: 1<<32 - 1}.by())
	set(entry(8, 0))
	s.waitTells(t, "after the last number there is none", "all:0 8:4294967295")
	// A session that is lost and back: what has happened meanwhile came after the entries that there were.
	set(entry(7, 0))
	a.finish(0)
	a = s.evpn.table.hear("a", false)
	set(entry(7, 0), entry(9, 0))
	a.apply(saying{vtep: 3, host: 7, sequence: 3}.by())
	a.apply(saying{vtep: 3, host: 9, sequence: 7}.by())
	s.waitTells(t, "while not all has been told, only an entry that has come rises", "all:0 9:8")
}

// Own routes are told as FRR tells its own ones, unless targets or a distinguisher are given; segments
// have different distinguishers, and keep them.
func TestEVPNNumbers(t *testing.T) {
	s := newEVPN(t)
	given := model.EVPN{Segments: []model.EVPNSegment{{VNI: 5001, VTEP: vtep(1)}, {VNI: 65536 + 5001, VTEP: vtep(1)}, {VNI: 65536, VTEP: vtep(1)},
		{VNI: 7, VTEP: vtep(1), Distinguisher: model.NewRouteDistinguisher(vtep(9), 9), Export: []model.RouteTarget{model.NewRouteTarget(1, 2), model.NewRouteTarget(4200000001, 3)}}}}
	numbers := func(e model.EVPN) string {
		t.Helper()
		if err := s.SetEVPN(e); err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, one := range s.Status().EVPN {
			list = append(list, fmt.Sprintf("%d: %v %v", one.VNI, one.Distinguisher, one.Export))
		}
		return strings.Join(list, ", ")
	}
	// 4200065001 & 0xffff is 59369.
	const others = "70537: 10.0.0.1:5002 [59369:70537], 65536: 10.0.0.1:1 [59369:65536]"
	if got, want := numbers(given), "5001: 10.0.0.1:5001 [59369:5001], "+others+", 7: 10.0.0.9:9 [1:2 4200000001:3]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	given.Segments = given.Segments[1:3]
	if got := numbers(given); got != others {
		t.Errorf("without the first segment: %s, want %s", got, others)
	}
	// What is set is not what others change later.
	given.Segments[0].VNI = 1
	s.Set(model.BGP{ASN: 65001, RouterID: vtep(2)}, nil)
	if got := s.tells(); got != "all:0 all:0" || s.evpn.own.routes[0].vni != 70537 {
		t.Errorf("another AS and router-id: %s", got)
	}
}

// What contradicts itself is refused with a reason, and changes nothing.
func TestEVPNRefused(t *testing.T) {
	s := newEVPN(t)
	if err := s.SetEVPN(*segment(entry(1, 1))); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*model.EVPN){
		"the VNI is not from 1 to 16777215": func(e *model.EVPN) { e.Segments[0].VNI = 1 << 24 },
		"it is there twice":                 func(e *model.EVPN) { e.Segments = append(e.Segments, e.Segments[0]) },
		"distinguisher 10.0.0.1:5 is also that of VNI 5001": func(e *model.EVPN) {
			e.Segments[0].Distinguisher = model.NewRouteDistinguisher(vtep(1), 5)
			e.Segments = append(e.Segments, model.EVPNSegment{VNI: 5002, VTEP: vtep(1), Distinguisher: e.Segments[0].Distinguisher})
		},
		"127.0.0.1 cannot be the address of a VTEP":  func(e *model.EVPN) { e.Segments[0].VTEP = loopback },
		"invalid IP cannot be the address of a VTEP": func(e *model.EVPN) { e.Segments[0].VTEP = netip.Addr{} },
		"010000000000 is no MAC address of a host":   func(e *model.EVPN) { e.Segments[0].Entries[0].MAC = model.MAC{1} },
		"224.0.0.1 is no IP address of a host":       func(e *model.EVPN) { e.Segments[0].Entries[0].IP = netip.MustParseAddr("224.0.0.1") },
		"02:00:00:00:00:02 192.168.0.2 is there twice": func(e *model.EVPN) {
			e.Segments[0].Entries = append(e.Segments[0].Entries, model.EVPNEntry{MAC: mac(2), IP: ip(2), Sequence: 1})
		},
		"more than 16 route targets": func(e *model.EVPN) { e.Segments[0].Import = make([]model.RouteTarget, 17) },
	} {
		e := segment(entry(2, 2))
		change(e)
		if err := s.SetEVPN(*e); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "VNI") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if got := s.tells(); got != "all:0 1=192.168.0.1:0" {
		t.Errorf("after what was refused it tells %s", got)
	}
}

// overlay is a neighbor with the family evpn, and a speaker that is VTEP of VNI 5001.
func overlay(t *testing.T) *neighbor {
	t.Helper()
	return newNeighborAfter(t, 9*time.Second, func(n *neighbor) {
		n.config.Families = []model.BGPFamily{model.BGPIPv4, model.BGPEVPN}
		if err := n.speaker.SetEVPN(*segment(entry(1, 1))); err != nil {
			t.Fatal(err)
		}
	}, "192.0.2.1/32")
}

func graceful(resumes bool, seconds uint16) gobgp.ParameterCapabilityInterface {
	return gobgp.NewCapGracefulRestart(false, false, seconds, []*gobgp.CapGracefulRestartTuple{gobgp.NewCapGracefulRestartTuple(gobgp.RF_EVPN, resumes)})
}

var evpnCapability = gobgp.NewCapMultiProtocol(gobgp.RF_EVPN)

// sends sends an UPDATE with this body.
func (n *neighbor) sends(c *connection, body []byte) {
	n.t.Helper()
	all := append(unhex(marker), byte((19+len(body))>>8), byte(19+len(body)), gobgp.BGP_MSG_UPDATE)
	if _, err := c.Write(append(all, body...)); err != nil {
		n.t.Fatal(err)
	}
}

// An EVPN neighbor is told what is here, and what it tells is learned. Refreshes of one family tell
// nothing of another.
func TestEVPNSession(t *testing.T) {
	n := overlay(t)
	learned := make(chan model.EVPNLearned, 64)
	n.speaker.FollowEVPN(func(l model.EVPNLearned) { learned <- l })
	follow := func(what string, until func(model.EVPNLearned) bool) {
		t.Helper()
		for {
			select {
			case l := <-learned:
				if until(l) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatal("waited in vain to learn", what)
			}
		}
	}
	follow("that there is nothing", func(l model.EVPNLearned) bool { return len(l.Hosts) == 0 && !l.Complete })
	c, open := n.accept()
	if text := fmt.Sprint(newAbilities(open).families); !strings.Contains(text, "l2vpn-evpn") || !newAbilities(open).evpnResumes {
		t.Errorf("the OPEN says %+v", newAbilities(open))
	}
	n.agree(c, evpnCapability, graceful(true, 60), gobgp.NewCapRouteRefresh())
	told := map[string]bool{}
	const host, multicast = "[type:macadv][rd:10.0.0.1:5001][etag:0][mac:02:00:00:00:00:01][ip:192.168.0.1]", "[type:multicast][rd:10.0.0.1:5001][etag:0][ip:10.0.0.1]"
	n.hears(c, told, func() bool { return told[host] && told[multicast] && told["192.0.2.1/32"] && told["end"] })

	n.sends(c, update(originIGP, pathOf65002, reachOf(hostRoute, macRoute, allRoute), vxlanOf5001, tunnel5001))
	follow("a host", func(l model.EVPNLearned) bool { return len(l.Hosts) == 2 && len(l.VTEPs) == 1 && !l.Complete })
	n.sends(c, update(unreachOf()))
	follow("that this is all", func(l model.EVPNLearned) bool { return l.Complete })
	n.eventually("count routes", func(s model.BGPNeighborStatus) bool {
		return s.Announced == 1 && s.EVPN != nil && s.EVPN.Sent == 2 && s.EVPN.Received == 3 && s.EVPN.Problem == "" && s.Problem == ""
	})
	if s := n.speaker.Status().EVPN; len(s) != 1 || s[0].Hosts != 2 || s[0].VTEPs != 1 || s[0].Entries != 1 {
		t.Errorf("the status is %+v", s)
	}

	for _, refresh := range []*gobgp.BGPMessage{gobgp.NewBGPRouteRefreshMessage(25, 0, 70), gobgp.NewBGPRouteRefreshMessage(1, 0, 1)} {
		clear(told)
		if err := c.write(time.Second, refresh); err != nil {
			t.Fatal(err)
		}
		isEVPN := refresh.Body.(*gobgp.BGPRouteRefresh).AFI == 25
		n.hears(c, told, func() bool { return told[host] && told[multicast] || told["192.0.2.1/32"] })
		if told[host] != isEVPN || told["192.0.2.1/32"] == isEVPN {
			t.Errorf("asked for %+v, it tells %v", refresh.Body, told)
		}
	}

	// Another segment: its routes were not kept, so the neighbor has to tell them again.
	e := segment(entry(1, 1))
	e.Segments = append(e.Segments, model.EVPNSegment{VNI: 5002, VTEP: vtep(1)})
	if err := n.speaker.SetEVPN(*e); err != nil {
		t.Fatal(err)
	}
	for {
		m := n.read(c)
		if m.kind == gobgp.BGP_MSG_UPDATE {
			apply(t, told, m)
		} else if m.kind == gobgp.BGP_MSG_ROUTE_REFRESH {
			if !slices.Equal(m.body, []byte{0, 25, 0, 70}) {
				t.Errorf("it asks for [% x]", m.body)
			}
			break
		}
	}

	// A lost session: the routes stay, and those of the next one count from its end of routes on.
	c.Close()
	c, _ = n.establish(evpnCapability, graceful(true, 60), gobgp.NewCapRouteRefresh())
	n.eventually("keep routes", func(s model.BGPNeighborStatus) bool {
		return s.State == model.SessionEstablished && s.EVPN.Received == 3 && s.EVPN.Stale == 3
	})
	n.sends(c, update(originIGP, pathOf65002, reachOf(macRoute), vxlanOf5001))
	n.sends(c, update(unreachOf()))
	follow("what is left", func(l model.EVPNLearned) bool { return l.Complete && len(l.Hosts) == 1 && len(l.VTEPs) == 0 })

	// A NOTIFICATION is no restart.
	if err := c.write(time.Second, gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET, nil)); err != nil {
		t.Fatal(err)
	}
	follow("that nothing is left", func(l model.EVPNLearned) bool { return len(l.Hosts) == 0 && !l.Complete })
	c, _ = n.establish(evpnCapability, graceful(true, 60))
	n.sends(c, update(originIGP, pathOf65002, reachOf(macRoute), vxlanOf5001))
	follow("a host again", func(l model.EVPNLearned) bool { return len(l.Hosts) == 1 })
	c.Close()
	c, _ = n.establish(helper) // without EVPN: there is no end of routes to wait for
	follow("that the neighbor speaks no EVPN any more", func(l model.EVPNLearned) bool { return len(l.Hosts) == 0 })
	c.Close()
	n.establish(evpnCapability, graceful(true, 60))
	n.speaker.Withdraw(0)
	n.eventually("have nothing announced", func(s model.BGPNeighborStatus) bool {
		return s.State == model.SessionEstablished && s.Announced == 0 && s.EVPN.Sent == 0
	})
}

// Routes that cannot be read are withdrawn, and where nobody can tell which ones they were, EVPN is off
// until the session begins again; the session goes on, and says so.
func TestEVPNThatIsWrong(t *testing.T) {
	n := overlay(t)
	c, _ := n.establish(evpnCapability, helper)
	n.sends(c, update(originIGP, pathOf65002, reachOf(hostRoute, macRoute), vxlanOf5001))
	n.eventually("learn", func(s model.BGPNeighborStatus) bool { return s.EVPN != nil && s.EVPN.Received == 2 })
	n.sends(c, update(pathOf65002, reachOf(hostRoute), vxlanOf5001))
	n.eventually("take the route for withdrawn", func(s model.BGPNeighborStatus) bool {
		return s.EVPN.Received == 1 && s.EVPN.Malformed == 1 && strings.Contains(s.EVPN.Problem, "attribute 1 is missing") && s.Problem == s.EVPN.Problem
	})
	n.sends(c, update(originIGP, pathOf65002, reachOf([]byte{2, 99}), vxlanOf5001))
	n.eventually("disable EVPN", func(s model.BGPNeighborStatus) bool {
		return s.EVPN.Received == 0 && strings.Contains(s.EVPN.Problem, "longer than its attribute") && s.State == model.SessionEstablished && s.Announced == 1
	})
	n.sends(c, update(originIGP, pathOf65002, reachOf(hostRoute), vxlanOf5001))
	n.set("192.0.2.1/32", "192.0.2.2/32")
	told := map[string]bool{}
	n.hears(c, told, func() bool { return told["192.0.2.2/32"] })
	if s := n.speaker.Status().Neighbors[0]; s.EVPN.Received != 0 || s.Losses != 0 {
		t.Errorf("what is told afterwards: %+v, %+v", s, s.EVPN)
	}
	n.sends(c, update(unreachOf(hostRoute), unreachOf(hostRoute)))
	if got := n.ends(c); !strings.Contains(got, "malformed attribute list") {
		t.Errorf("an attribute twice ends the session with %q", got)
	}
	c, _ = n.establish(evpnCapability, helper)
	n.sends(c, update(originIGP, pathOf65002, reachOf(hostRoute), vxlanOf5001))
	n.eventually("learn again", func(s model.BGPNeighborStatus) bool {
		return s.EVPN.Received == 1 && s.EVPN.Problem == "" && s.Problem == ""
	})
}

// A neighbor that does not know EVPN is told the VIPs, and its status says what it lacks.
func TestNeighborWithoutEVPN(t *testing.T) {
	n := overlay(t)
	c, _ := n.establish(helper)
	told := map[string]bool{}
	n.hears(c, told, func() bool { return told["192.0.2.1/32"] && told["end"] })
	n.eventually("say what it lacks", func(s model.BGPNeighborStatus) bool {
		return s.State == model.SessionEstablished && s.EVPN != nil && s.EVPN.Problem == s.Problem &&
			s.Problem == "it does not take evpn routes: it has to be told to (address family l2vpn evpn)"
	})
	n.sends(c, update(originIGP, pathOf65002, reachOf(hostRoute), vxlanOf5001))
	n.config.Families = []model.BGPFamily{model.BGPIPv4}
	n.set("192.0.2.1/32")
	n.establish(evpnCapability, helper)
	n.eventually("have no EVPN", func(s model.BGPNeighborStatus) bool {
		return s.State == model.SessionEstablished && s.EVPN == nil && s.Problem == ""
	})
}
