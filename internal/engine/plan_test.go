package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// web is a service with n backends of equal weight.
func web(n int) model.Service {
	s := model.Service{
		Name: "web", VIP: netip.MustParseAddr("192.0.2.1"), Protocol: model.TCP,
		Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE,
	}
	for i := range n {
		s.Backends = append(s.Backends, model.Backend{
			Name: fmt.Sprintf("web-%d", i), Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
			Weight: 100, State: model.Active,
		})
	}
	return s
}

func config(services ...model.Service) model.Config { return model.Config{Services: services} }

// planOne returns the plan of one service.
func planOne(t *testing.T, s model.Service, health Health) model.TableService {
	t.Helper()
	table, _ := Plan(config(s), nil, health)
	if len(table.Services) != 1 {
		t.Fatalf("one service became %d", len(table.Services))
	}
	return table.Services[0]
}

// owners returns how many slots each backend owns, by name.
func owners(s model.TableService) map[string]int {
	slots := map[string]int{}
	for _, slot := range s.Ring.Slots {
		slots[s.Backends[slot.Owner].Name]++
	}
	return slots
}

func TestPlanCopiesWhatTheDatapathNeeds(t *testing.T) {
	ipip := model.IPIP
	s := model.Service{
		Name: "dns", Segment: model.Segment{Kind: model.SegmentVLAN, ID: 7}, VIP: netip.MustParseAddr("2001:db8::1"),
		Protocol: model.UDP, Port: model.PortRange{First: 53, Last: 54}, Mode: model.NAT, SNAT: true,
		Affinity: model.AffinitySourceIP, RingSize: 2, QUIC: []model.QUICConfig{{ID: 1, NonceLength: 4}},
		Backends: []model.Backend{
			{Name: "a", Address: netip.MustParseAddr("2001:db8::a"), Port: 5353, Weight: 1, State: model.Active,
				MAC: model.MAC{2, 1}, VLAN: 9, Interface: "eth1", MTU: 9000, ServerID: model.SameServerID("id")},
			{Name: "b", Address: netip.MustParseAddr("10.0.0.2"), Weight: 1, State: model.Down, Mode: &ipip},
		},
	}
	desired := config(s)
	desired.Director = model.Director{
		Interfaces:   []string{"eth0"},
		TunnelSource: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		SNAT:         model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("10.8.0.1")}},
		ICMPRate:     10,
	}
	want := model.Table{
		Interfaces: []string{"eth0"}, TunnelSource: desired.Director.TunnelSource, SNAT: desired.Director.SNAT, ICMPRate: 10,
		Services: []model.TableService{{
			Name: "dns", Segment: s.Segment, VIP: s.VIP, Protocol: model.UDP, Port: s.Port, Mode: model.NAT, Affinity: model.AffinitySourceIP,
			Salt: 4592153721851790760, // held: other directors must have the same
			QUIC: s.QUIC,
			Backends: []model.TableBackend{
				{Name: "a", Address: s.Backends[0].Address, Port: 5353, Mode: model.NAT, SNAT: true, State: model.Active,
					MAC: model.MAC{2, 1}, VLAN: 9, Interface: "eth1", Segment: model.Segment{Kind: model.SegmentVLAN, ID: 9}, MTU: 9000, ServerID: model.SameServerID("id")},
				{Name: "b", Address: s.Backends[1].Address, Mode: model.IPIP, State: model.Down, Unwell: true},
			},
			Ring: model.Ring{Slots: []model.Slot{{Owner: 0, Next: 1}, {Owner: 1, Next: 0}}},
		}},
	}
	got, report := Plan(desired, nil, nil)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("the table is not as wanted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Report{[]ServiceReport{{Name: "dns", ID: s.ID(), Members: 2, Generations: 1, Slots: 2, Up: true}}}, report,
		cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("the report is not as wanted (-want +got):\n%s", diff)
	}
}

func TestPlanHasTheConstantsOfMaglev(t *testing.T) {
	if model.NoBackend != maglev.None || model.ListFlag != maglev.ListFlag {
		t.Error("slots of model and maglev differ")
	}
	for n := 0; n < 3000; n += 7 {
		if model.DefaultRingSize(n) != maglev.DefaultSize(n) {
			t.Errorf("the default ring for %d backends has %d slots in model, %d in maglev",
				n, model.DefaultRingSize(n), maglev.DefaultSize(n))
		}
	}
}

func TestRingFollowsMembership(t *testing.T) {
	ring := func(change func(s *model.Service)) model.TableService {
		s := web(4)
		change(&s)
		return planOne(t, s, nil)
	}
	base := ring(func(*model.Service) {})
	for _, test := range []struct {
		name   string
		change func(s *model.Service)
		same   bool
	}{
		{"another name of a backend", func(s *model.Service) { s.Backends[1].Name = "other" }, true},
		{"another name of the service", func(s *model.Service) { s.Name = "other" }, true},
		{"another mode", func(s *model.Service) { s.Mode = model.IPIP }, true},
		{"a backend is down", func(s *model.Service) { s.Backends[1].State = model.Down }, true},
		{"all weights doubled", func(s *model.Service) {
			for i := range s.Backends {
				s.Backends[i].Weight *= 2
			}
		}, true},
		{"another port of a backend", func(s *model.Service) { s.Backends[1].Port = 8080 }, false},
		{"another address", func(s *model.Service) { s.Backends[1].Address = netip.MustParseAddr("10.9.9.9") }, false},
		{"another weight", func(s *model.Service) { s.Backends[1].Weight = 50 }, false},
		{"another size", func(s *model.Service) { s.RingSize = 2003 }, false},
		{"a backend drains", func(s *model.Service) { s.Backends[1].State = model.Draining }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := slices.Equal(ring(test.change).Ring.Slots, base.Ring.Slots); got != test.same {
				t.Errorf("the ring is the same: %v, want %v", got, test.same)
			}
		})
	}
}

func TestOnlyMembersOwnSlots(t *testing.T) {
	s := web(5)
	s.Backends[0].State = model.Draining
	s.Backends[1].Weight = 0
	s.Backends[2].State = model.Down
	s.Backends[3].Weight = 200
	got := planOne(t, s, nil)
	if len(got.Backends) != 5 {
		t.Errorf("the table has %d backends of 5", len(got.Backends))
	}
	// 1,021 slots to weights 100 (down), 200 and 100.
	want := map[string]int{"web-2": 255, "web-3": 511, "web-4": 255}
	if diff := cmp.Diff(want, owners(got)); diff != "" {
		t.Errorf("owners of slots (-want +got):\n%s", diff)
	}
	for _, slot := range got.Ring.Slots {
		if slot.Next == slot.Owner || slot.Next < 2 || slot.Next > 4 {
			t.Fatalf("the backup of backend %d is %d", slot.Owner, slot.Next)
		}
	}
}

func TestDrainingMovesNoSlotOfOthersWithTheSize(t *testing.T) {
	s := web(40)
	before := planOne(t, s, nil)
	s.Backends[7].State = model.Draining
	after := planOne(t, s, nil)
	if len(before.Ring.Slots) != len(after.Ring.Slots) {
		t.Errorf("the ring's size changed from %d to %d", len(before.Ring.Slots), len(after.Ring.Slots))
	}
	for i, slot := range before.Ring.Slots {
		if slot.Owner == 7 && after.Ring.Slots[i].Owner != slot.Next {
			t.Fatalf("slot %d of the draining backend went to %d, its backup is %d", i, after.Ring.Slots[i].Owner, slot.Next)
		}
	}
}

func TestServiceWithoutMembersHasNoSlots(t *testing.T) {
	s := web(2)
	s.Backends[0].State, s.Backends[1].Weight = model.Draining, 0
	for _, s := range []model.Service{web(0), s} {
		if got := planOne(t, s, nil); got.Ring.Slots != nil || got.Ring.Lists != nil {
			t.Errorf("a service whose backends may own nothing has %d slots", len(got.Ring.Slots))
		}
	}
}

// A service whose backends all drain goes on with its last ring. Where the owner and the
// backup are removed nobody is left.
func TestSlotsOfTheRemovedAreNobodys(t *testing.T) {
	s, now := web(3), time.Unix(0, 0)
	log := history.Advance(model.Log{}, &s, now)
	before := makeRing(&log.Generations[0])
	s.Backends = slices.Clone(s.Backends[:1])
	s.Backends[0].State = model.Draining
	log, _ = history.Trim(log, &s, nil, nil, now)
	log = history.Advance(log, &s, now)
	table, _ := Plan(config(s), Logs{s.ID(): log}, nil)
	nobodys := 0
	for i, slot := range table.Services[0].Ring.Slots {
		want := model.Slot{Owner: 0, Next: model.NoBackend}
		if before.Owners[i] != 0 && before.Backups[i] != 0 {
			want.Owner = model.NoBackend
			nobodys++
		}
		if slot != want {
			t.Fatalf("slot %d is %+v, want %+v", i, slot, want)
		}
	}
	if nobodys == 0 {
		t.Error("no slot had two other members: this test shows nothing")
	}
}

func TestOneMemberHasNoBackup(t *testing.T) {
	for _, slot := range planOne(t, web(1), nil).Ring.Slots {
		if (slot != model.Slot{Owner: 0, Next: model.NoBackend}) {
			t.Fatalf("the only backend's slot is %v", slot)
		}
	}
}

func TestHealthMakesStatesAndNoRing(t *testing.T) {
	s := web(4)
	s.Backends[2].State = model.Draining
	s.Health = &model.HealthCheck{Kind: model.CheckTCP}
	target := func(i int) model.Target {
		return model.Target{Service: s.ID(), Backend: netip.AddrPortFrom(s.Backends[i].Address, 0)}
	}
	got := planOne(t, s, Health{target(0): model.HealthUp, target(1): model.HealthDown, target(2): model.HealthDown,
		{Backend: target(3).Backend}: model.HealthDown})
	want := []model.BackendState{model.Active, model.Suspect, model.Suspect, model.Active}
	for i, b := range got.Backends {
		if b.State != want[i] {
			t.Errorf("backend %d is %v, want %v", i, b.State, want[i])
		}
	}
	if !slices.Equal(got.Ring.Slots, planOne(t, s, nil).Ring.Slots) {
		t.Error("health changed the ring")
	}
}

func TestBoundFollowsTheOuterHeader(t *testing.T) {
	s := web(3)
	want := func(bound int) {
		t.Helper()
		if got := membershipsOf(&s, history.Advance(model.Log{}, &s, time.Time{}))[0].now.bound; got != bound {
			t.Errorf("a row has at most %d candidates, want %d", got, bound)
		}
	}
	want(model.MaxCandidates)
	s.VIP = netip.MustParseAddr("2001:db8::1") // inside of IPv4
	want(model.MaxCandidates)
	s.Backends[1].Address = netip.MustParseAddr("2001:db8::2")
	want(model.MaxCandidates6)
}

func TestSaltIsTheServices(t *testing.T) {
	base := web(1)
	salts := map[uint64]string{base.ID().Salt(): "the service"}
	for name, change := range map[string]func(s *model.Service){
		"segment":  func(s *model.Service) { s.Segment = model.Segment{Kind: model.SegmentVLAN, ID: 1} },
		"vip":      func(s *model.Service) { s.VIP = netip.MustParseAddr("192.0.2.2") },
		"protocol": func(s *model.Service) { s.Protocol = model.UDP },
		"port":     func(s *model.Service) { s.Port = model.PortRange{First: 81, Last: 81} },
		"ports":    func(s *model.Service) { s.Port = model.PortRange{First: 80, Last: 81} },
	} {
		s := base
		change(&s)
		if other, taken := salts[s.ID().Salt()]; taken {
			t.Errorf("another %s has the salt of %s", name, other)
		}
		salts[s.ID().Salt()] = name
	}
	renamed := web(3)
	renamed.Name, renamed.Mode = "other", model.NAT
	if renamed.ID().Salt() != base.ID().Salt() {
		t.Error("a new name, mode and backends change the salt: flows would move")
	}
}
