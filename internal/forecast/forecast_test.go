package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
)

func service(mode model.Mode, backends int) model.Service {
	s := model.Service{Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: mode, RingSize: 1021}
	for i := range backends {
		b := model.NewBackend()
		b.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})
		s.Backends = append(s.Backends, b)
	}
	c := model.Config{Services: []model.Service{s}}
	c.SetDefaults()
	return c.Services[0]
}

// changeOf is what changing a service so is, of which nothing else is known.
func changeOf(before, after *model.Service) *Change {
	c := &Change{Before: before, After: after, Now: time.Now(), Down: func(netip.AddrPort) bool { return false },
		Reported: func(netip.AddrPort) *model.ReportedService { return nil }}
	of := func(s *model.Service) (list engine.Services) {
		if s != nil {
			list.List = []model.Service{*s}
		}
		return list
	}
	c.Shift = engine.Shifts(of(before), of(after))[0]
	return c
}

func with(s model.Service, change func(*model.Service)) *model.Service {
	s.Backends = slices.Clone(s.Backends)
	change(&s)
	return &s
}

// Traffic goes with the slots: other backends get what one loses, no traffic is added or lost on
// the way, and a backend that has twice the traffic of others for its slots gives twice as much.
func TestTraffic(t *testing.T) {
	before := service(model.GUE, 4)
	rate := func(n float64) model.Rate { return model.Rate{Connections: n, Packets: 10 * n, Bytes: 1000 * n} }
	for name, change := range map[string]func(*model.Service){
		"nothing":          func(*model.Service) {},
		"one is gone":      func(s *model.Service) { s.Backends = s.Backends[1:] },
		"one drains":       func(s *model.Service) { s.Backends[0].State = model.Draining },
		"one comes":        func(s *model.Service) { *s = service(model.GUE, 5) },
		"another size":     func(s *model.Service) { s.RingSize = 2003 },
		"another affinity": func(s *model.Service) { s.Affinity = model.AffinitySourceIP },
	} {
		c := changeOf(&before, with(before, change))
		c.Seen = map[netip.AddrPort]model.Rate{}
		for i, n := range []float64{200, 100, 100, 100} {
			c.Seen[before.Backends[i].Endpoint()] = rate(n)
		}
		p := Of(c)
		var was, is, lost float64
		for _, b := range p.Backends {
			if b.Before != nil {
				was += b.Before.Rate.Packets
			}
			if b.After != nil {
				is += b.After.Rate.Packets
			}
			if b.Before != nil && b.After != nil {
				lost += max(0, b.Before.Rate.Connections-b.After.Rate.Connections)
			} else if b.Before != nil {
				lost += b.Before.Rate.Connections
			}
		}
		if math.Abs(was-5000) > 1e-6 || math.Abs(is-5000) > 1e-6 || p.Seen.Connections != 500 {
			t.Errorf("%s: of 5000 packets in a second %.3f are there before and %.3f after", name, was, is)
		}
		if p.Of != model.SeenInConnections || math.Abs(*p.Traffic-p.Moves.Connections/500) > 1e-9 || p.Moves.Connections < lost-1e-6 {
			t.Errorf("%s: backends lose %.1f connections in a second, %.1f move, and the share is %v of %s", name, lost, p.Moves.Connections, *p.Traffic, p.Of)
		}
		if moves := *p.Traffic; (name == "one is gone" || name == "one drains") && math.Abs(moves-0.4) > 0.05 {
			t.Errorf("%s: of its traffic %.3f moves, want nearly all of the one that had 200 of 500", name, moves)
		}
	}
	c := changeOf(&before, with(before, func(s *model.Service) { s.Backends = s.Backends[1:] }))
	if p := Of(c); p.Traffic != nil || p.Seen != nil || p.Backends[0].Before.Rate != nil {
		t.Errorf("nothing was counted, and it is said %+v", p)
	}
	c.Seen = map[netip.AddrPort]model.Rate{}
	if p := Of(c); p.Traffic != nil || p.Seen == nil {
		t.Errorf("nothing came, and it is said %+v", p)
	}
	c.Seen[before.Backends[0].Endpoint()] = model.Rate{Packets: 5}
	if p := Of(c); p.Of != model.SeenInPackets || *p.Traffic != 1 {
		t.Errorf("all packets were of the one that goes, and it is said %+v", p)
	}
}

// A backend that is down has no traffic to give: the slots' backups have it.
func TestTrafficOfBackendsThatAreDown(t *testing.T) {
	before := service(model.IPIP, 3)
	gone := before.Backends[0].Endpoint()
	c := changeOf(&before, with(before, func(s *model.Service) { s.Backends = s.Backends[1:] }))
	c.Down = func(b netip.AddrPort) bool { return b == gone }
	c.Seen = map[netip.AddrPort]model.Rate{before.Backends[1].Endpoint(): {Connections: 70}, before.Backends[2].Endpoint(): {Connections: 80}}
	p := Of(c)
	// Backups are the backends that would own the slots without the owner: they do so already.
	if p.Moved == 0 || *p.Traffic > 0.1 || !p.Backends[2].Down || p.Backends[2].Before.Share != 0 {
		t.Errorf("taking a dead backend out moves %d slots and %.3f of the traffic: %+v", p.Moved, *p.Traffic, p.Backends)
	}
}

// How many connections are in a report is estimated, and which of them are in slots that move.
func TestOpen(t *testing.T) {
	const each = 4000
	before := service(model.GUE, 3)
	after := with(before, func(s *model.Service) { s.Backends = s.Backends[1:] })
	c := changeOf(&before, after)
	reports := map[netip.AddrPort]*model.ReportedService{}
	for _, b := range before.Backends {
		reports[b.Endpoint()] = &model.ReportedService{ServiceID: before.ID(), Used: model.NewSlotSet(before.ReportRanges())}
	}
	table := c.Shift.Before
	r, had := rand.New(rand.NewPCG(8, 9)), map[netip.AddrPort]int{}
	for range 3 * each {
		hash := r.Uint64()
		b := table.Backends[table.Ring.Slots[table.Ring.SlotOf(hash)].Owner]
		key := netip.AddrPortFrom(b.Address, b.Port)
		reports[key].Note(hash)
		had[key]++
	}
	c.Reported = func(b netip.AddrPort) *model.ReportedService { return reports[b] }
	p := Of(c)
	gone := had[before.Backends[0].Endpoint()]
	for _, b := range p.Backends {
		want := had[netip.AddrPortFrom(b.Address, b.Port)]
		if b.Open == nil || math.Abs(float64(*b.Open)-float64(want)) > 0.05*float64(want) {
			t.Errorf("of %s %d connections are said to be open, want about %d", b.Name, *b.Open, want)
		}
	}
	share := float64(p.Moved) / float64(p.Slots)
	if p.Open == nil || math.Abs(*p.Open-share) > 0.03 {
		t.Errorf("%.3f of the slots move, and %v of the open connections", share, p.Open)
	}
	removed := p.Risks[slices.IndexFunc(p.Risks, func(r model.Risk) bool { return r.Reason == model.RiskBackendRemoved })]
	if removed.CountedBy != model.CountedByAgents || math.Abs(float64(*removed.Connections)-float64(gone)) > 0.05*float64(gone) {
		t.Errorf("%d are at risk by %s, want about %d", *removed.Connections, removed.CountedBy, gone)
	}
	// A backend that has no traffic left can be taken away.
	reports[before.Backends[0].Endpoint()].Used = model.NewSlotSet(before.ReportRanges())
	if p := Of(c); len(p.Risks) > 0 {
		t.Errorf("of a backend without connections %+v is at risk", p.Risks)
	}
	// If one agent does not report, the number is unknown, and a report that is full
	// gives no number.
	delete(reports, before.Backends[1].Endpoint())
	if p := Of(c); p.Open != nil {
		t.Errorf("one agent says nothing, and %.3f of all open connections are said to move", *p.Open)
	}
	full := model.NewSlotSet(64)
	for i := range 64 {
		full.Add(i)
	}
	if n, _, known := connectionsIn(full, func(hash uint32) (owned, moves bool) { return hash > 1<<31, false }); known {
		t.Errorf("a full report is of %.0f connections", n)
	}
	if n, moves, known := connectionsIn(full, func(uint32) (owned, moves bool) { return false, true }); !known || n != 64 || moves != 64 {
		t.Errorf("64 ranges of older slots are of %.0f connections, of which %.0f move", n, moves)
	}
}

// The mode and the change decide which connections end, and when.
func TestRisks(t *testing.T) {
	gue := model.GUE
	for _, test := range []struct {
		name   string
		mode   model.Mode
		group  bool
		change func(*model.Service)
		want   string
	}{
		{"nothing", model.IPIP, true, func(*model.Service) {}, "[]"},
		{"another name", model.IPIP, true, func(s *model.Service) { s.Name = "www" }, "[]"},
		{"drain with agents", gue, true, func(s *model.Service) { s.Backends[0].State = model.Draining }, "[]"},
		{"drain without", model.L2DSR, false, func(s *model.Service) { s.Backends[0].State = model.Draining }, "[no-agents if-idle]"},
		{"weights", model.NAT, false, func(s *model.Service) { s.Backends[0].Weight = 300 }, "[no-agents if-idle]"},
		{"one is removed", gue, true, func(s *model.Service) { s.Backends = s.Backends[1:] }, "[backend-removed at-once]"},
		{"one is down", gue, true, func(s *model.Service) { s.Backends[0].State = model.Down }, "[backend-down at-once]"},
		{"to nat", model.L2DSR, true, func(s *model.Service) { s.Mode = model.NAT }, "[translation at-once]"},
		{"to full nat", model.NAT, true, func(s *model.Service) { s.SNAT = true }, "[translation at-once]"},
		{"to gue", model.IPIP, true, func(s *model.Service) { s.Mode = gue }, "[tunnel if-not-ready]"},
		{"one to gue", model.IPIP, true, func(s *model.Service) { s.Backends[1].Mode = &gue }, "[tunnel if-not-ready]"},
		{"from gue, unmoved", gue, true, func(s *model.Service) { s.Mode = model.L2DSR }, "[tunnel if-not-ready]"},
		{"affinity with agents", gue, false, func(s *model.Service) { s.Affinity = model.AffinitySourceIP }, "[]"},
		{"affinity in a group", gue, true, func(s *model.Service) { s.Affinity = model.AffinitySourceIP }, "[no-notice if-a-director-is-late]"},
		{"affinity without", model.IPIP, false, func(s *model.Service) { s.Affinity = model.AffinitySourceIP }, "[affinity if-idle]"},
		{"size in a group", gue, true, func(s *model.Service) { s.RingSize = 2003 }, "[no-notice if-a-director-is-late]"},
		{"weights in turns", model.IPIP, true, func(s *model.Service) { s.Backends[0].Weight = 300 }, "[memory-alone if-directors-change]"},
		{"to turns", model.IPIP, true, func(s *model.Service) { s.Policy = model.RoundRobin }, "[memory-alone if-directors-change][no-notice if-a-director-is-late]"},
		{"server ids", gue, false, func(s *model.Service) { s.Backends[0].ServerID = model.SameServerID("\x09") }, "[quic at-once]"},
		{"keys", gue, false, func(s *model.Service) { s.QUIC = nil }, "[quic at-once]"},
	} {
		before := service(test.mode, 3)
		if test.name == "keys" || test.name == "server ids" {
			before.QUIC = []model.QUICConfig{{ID: 1, Key: model.QUICKey{7}}}
		}
		if test.name == "weights in turns" {
			before.Policy = model.LeastConn
		}
		c := changeOf(&before, with(before, test.change))
		c.Group, c.WasLog = test.group, model.Log{Generations: []model.Generation{{Slots: 1021}}}
		p := Of(c)
		got := ""
		for _, r := range p.Risks {
			if got += fmt.Sprintf("[%s %s]", r.Reason, r.When); r.Text == "" {
				t.Errorf("%s: nothing is said of %s", test.name, r.Reason)
			}
		}
		if got == "" {
			got = "[]"
		}
		if got != test.want || p.KeysGo != (test.name == "keys") {
			t.Errorf("%s risks %s, want %s", test.name, got, test.want)
		}
	}
	before := service(model.NAT, 3)
	before.SNAT = true
	c := changeOf(&before, with(before, func(s *model.Service) { s.Backends[0].Weight = 500 }))
	c.Group = true
	if p := Of(c); len(p.Risks) != 1 || p.Risks[0].Reason != model.RiskFullNAT {
		t.Errorf("moving slots of full NAT risks %+v", p.Risks)
	}
}

// Of a service that goes all connections end: of those that are remembered it is known.
func TestRemoved(t *testing.T) {
	before := service(model.L2DSR, 2)
	before.QUIC = []model.QUICConfig{{Key: model.QUICKey{7}}}
	c := changeOf(&before, nil)
	c.Remembered = map[netip.AddrPort]uint64{before.Backends[0].Endpoint(): 3, before.Backends[1].Endpoint(): 4}
	p := Of(c)
	if len(p.Risks) != 1 || p.Risks[0].Reason != model.RiskServiceRemoved || *p.Risks[0].Connections != 7 || p.Risks[0].CountedBy != model.CountedByMemory || !p.KeysGo {
		t.Errorf("removing a service is %+v", p)
	}
	if p := Of(changeOf(nil, &before)); p.Change != "added" || len(p.Risks) > 0 || p.Backends[0].Before != nil || p.Backends[0].After.Share < 0.4 {
		t.Errorf("adding one is %+v", p)
	}
}

// How long a removed backend has drained is said, by the log, and slots that a shorter
// max-retention lets go while agents report connections in them.
func TestRisksByTheLog(t *testing.T) {
	now := time.Now()
	before := service(model.GUE, 3)
	before.Backends[0].State = model.Draining
	all, two := []model.Member{}, []model.Member{}
	for i, b := range before.Backends {
		all = append(all, model.Member{Backend: b.Endpoint(), Weight: 100})
		if i > 0 {
			two = append(two, model.Member{Backend: b.Endpoint(), Weight: 100})
		}
	}
	kept := model.NewSlotSet(1021)
	kept.Add(3)
	kept.Add(9)
	log := model.Log{Generations: []model.Generation{
		{Number: 2, Since: now.Add(-90 * time.Minute), Slots: 1021, Members: two},
		{Number: 1, Since: now.Add(-24 * time.Hour), Slots: 1021, Members: all, Kept: kept}}}
	c := changeOf(&before, with(before, func(s *model.Service) { s.Backends = s.Backends[1:] }))
	c.Now, c.WasLog = now, log
	if p := Of(c); len(p.Risks) != 1 || p.Risks[0].Text != "a backend that is removed leaves all rows at once: it has had no new connections for 1h30m0s, and those that live longer end" {
		t.Errorf("removing a drained backend risks %+v", p.Risks)
	}
	for drain, want := range map[time.Duration]int{time.Hour: 1, 2 * time.Hour: 0} {
		c = changeOf(&before, with(before, func(s *model.Service) { s.MaxRetention = model.Duration(drain) }))
		c.Now, c.WasLog = now, log
		if p := Of(c); len(p.Risks) != want || want > 0 && p.Risks[0].Reason != model.RiskMaxRetention {
			t.Errorf("a max-retention of %v risks %+v", drain, p.Risks)
		}
	}
}

// A service that stops asking for redirection loses the connections that other hosts have taken.
// No other change does that.
func TestStopsAsking(t *testing.T) {
	before := service(model.NAT, 2)
	before.SNAT, before.AskRedirect = true, true
	for _, test := range []struct {
		change func(*model.Service)
		want   bool
	}{
		{func(s *model.Service) { s.AskRedirect = false }, true},
		{func(s *model.Service) { s.AskRedirect, s.SNAT = false, false }, false}, // translation
		{func(s *model.Service) { s.Retention = model.Duration(time.Hour) }, false},
	} {
		p := Of(changeOf(&before, with(before, test.change)))
		if got := slices.ContainsFunc(p.Risks, func(r model.Risk) bool { return r.Reason == model.RiskAsks }); got != test.want {
			t.Errorf("risks %+v, want one of %s: %v", p.Risks, model.RiskAsks, test.want)
		}
	}
}
