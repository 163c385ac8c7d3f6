package engine

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// tieredWeb is web with a check, and with backends in tiers, such as 2, 2, 1.
func tieredWeb(tiers ...int) model.Service {
	s := checkedWeb(0, 50)
	for tier, n := range tiers {
		for range n {
			b := web(len(s.Backends) + 1).Backends[len(s.Backends)]
			b.Tier = uint8(tier)
			s.Backends = append(s.Backends, b)
		}
	}
	return s
}

// TestTier writes backends as letters, as TestPanic does, a word for each tier.
func TestTier(t *testing.T) {
	states := map[rune]model.HealthState{'u': model.HealthUp, 'd': model.HealthDown, 'n': model.HealthUnknown}
	for _, test := range []struct {
		least  uint32
		health string
		tier   uint8
		panic  bool
		why    string
	}{
		{1, "uu u", 0, false, "2 of 2 backends of tier 0 are healthy, min-healthy is 1"},
		{1, "ud u", 0, false, "1 of 2 backends of tier 0 are healthy, min-healthy is 1"},
		{1, "dd u", 1, false, "0 of 2 backends of tier 0 are healthy, min-healthy is 1"},
		{1, "dddd u", 1, false, "0 of 4 backends of tier 0 are healthy, min-healthy is 1"},
		{2, "ud u", 1, false, "1 of 2 backends of tier 0 are healthy, min-healthy is 2"},
		{2, "ud d u", 2, false, "1 of 3 backends of tiers 0 to 1 are healthy, min-healthy is 2"},
		{1, "dd d u", 2, false, "0 of 3 backends of tiers 0 to 1 are healthy, min-healthy is 1"},
		// If no tier has enough, it is the first one, and checks are believed as if there were one tier.
		{1, "dd d", 0, true, "0 of 3 backends of tiers 0 to 1 are healthy, min-healthy is 1"},
		{4, "uu d", 0, false, "2 of 3 backends of tiers 0 to 1 are healthy, min-healthy is 4"},
		{4, "ud d", 0, true, "1 of 3 backends of tiers 0 to 1 are healthy, min-healthy is 4"},
		// A tier whose health is not known yet does not count.
		{1, "nn u", 1, false, "0 of 2 backends of tier 0 are healthy, min-healthy is 1"},
		{1, "nn n", 0, false, "0 of 3 backends of tiers 0 to 1 are healthy, min-healthy is 1"},
		{1, "xx x", 0, false, "2 of 2 backends of tier 0 are healthy, min-healthy is 1"},
		// Nor do backends that get no new connections.
		{1, "rr u", 1, false, "0 of 0 backends of tier 0 are healthy, min-healthy is 1"},
		{1, "mm u", 1, false, "0 of 2 backends of tier 0 are healthy, min-healthy is 1"},
		{0, "dd u", 0, true, "0 of 2 backends of tier 0 are healthy, min-healthy is 0"},
	} {
		words := strings.Fields(test.health)
		var counts []int
		for _, w := range words {
			counts = append(counts, len(w))
		}
		s := tieredWeb(counts...)
		s.MinHealthy = &test.least
		health := Health{}
		for i, letter := range strings.Join(words, "") {
			switch letter {
			case 'r':
				s.Backends[i].State = model.Draining
			case 'm':
				s.Backends[i].State = model.Down
			}
			if state, known := states[letter]; known {
				health[targetOf(&s, i)] = state
			}
		}
		table, report := Plan(config(s), nil, health)
		got, of := table.Services[0], report.Services[0]
		if got.Tier != test.tier || of.Tier != test.tier || of.Tiers.Active != test.tier || of.Tiers.Why() != test.why || of.Health.Panic != test.panic {
			t.Errorf("min-healthy %d and health %s: tier %d (%d), because %s, panic %v; want %d, because %s, panic %v",
				test.least, test.health, got.Tier, of.Tier, of.Tiers.Why(), of.Health.Panic, test.tier, test.why, test.panic)
		}
		for _, slot := range got.Ring.Slots {
			if owner := got.Backends[slot.Owner]; owner.Tier != test.tier {
				t.Fatalf("health %s: backend %s of tier %d owns a slot", test.health, owner.Name, owner.Tier)
			}
		}
	}
}

// Without a check the states of the configuration decide, and a tier that drains goes on only if there is no other.
func TestTierWithoutChecks(t *testing.T) {
	s := tieredWeb(2, 1)
	s.Health = nil
	if got := planOne(t, s, nil); got.Tier != 0 || got.TierHealth.Tiers[0].Healthy != 2 {
		t.Errorf("of %+v tier %d is active", got.TierHealth, got.Tier)
	}
	s.Backends[0].State, s.Backends[1].State = model.Draining, model.Down
	if got := planOne(t, s, nil); got.Tier != 1 {
		t.Errorf("tier %d is active, and tier 0 is draining and down", got.Tier)
	}
	log := history.Advance(model.Log{}, &s, time.Time{})
	s.Backends[1].State, s.Backends[2].State = model.Draining, model.Draining
	log = history.Advance(log, &s, time.Time{}.Add(time.Hour))
	table, _ := Plan(config(s), Logs{s.ID(): log}, nil)
	if got := table.Services[0]; got.Ring.Slots == nil || got.Tier != 0 {
		t.Errorf("all drain, and tier %d is active, with %d slots", got.Tier, len(got.Ring.Slots))
	}
}

// A change of health computes nothing: the planner has the rings of all tiers.
func TestHealthMakesNoTiersRing(t *testing.T) {
	s := tieredWeb(3, 2, 1)
	p := NewPlanner()
	down := Health{}
	table, _ := p.Plan(config(s), nil, nil)
	first, made := table.Services[0], p.rings.made
	for i := range 5 {
		down[targetOf(&s, i)] = model.HealthDown
		table, _ = p.Plan(config(s), nil, down)
		got := table.Services[0]
		if want := []uint8{0, 0, 1, 1, 2}[i]; got.Tier != want {
			t.Fatalf("%d are down, and tier %d is active, want %d", i+1, got.Tier, want)
		}
		for tier := range got.Tiers {
			if !model.SameMemory(got.Tiers[tier].Ring.Slots, first.Tiers[tier].Ring.Slots) {
				t.Errorf("%d are down, and the ring of tier %d is another one", i+1, tier)
			}
		}
		if !model.SameMemory(got.Ring.Slots, first.Tiers[got.Tier].Ring.Slots) {
			t.Errorf("the ring in use is not that of tier %d", got.Tier)
		}
	}
	if p.rings.made != made {
		t.Errorf("%d rings were made", p.rings.made-made)
	}
}

// Where directors remember flows, the first tier's ring is as if there were no others; a service without tiers has one ring.
func TestFirstTierCostsNothing(t *testing.T) {
	for _, mode := range []model.Mode{model.L2DSR, model.NAT, model.IPIP, model.GUE} {
		tiered, plain := tieredWeb(3, 2), tieredWeb(3)
		for _, s := range []*model.Service{&tiered, &plain} {
			s.Mode, s.RingSize = mode, 1021
		}
		got, want := planOne(t, tiered, nil), planOne(t, plain, nil)
		if want.Tiers != nil || want.TierHealth != nil {
			t.Fatalf("%v: a service without tiers has %d", mode, len(want.Tiers))
		}
		same := slices.Equal(got.Ring.Slots, want.Ring.Slots) && len(got.Ring.Lists) == 0
		if same != (mode != model.GUE) {
			t.Errorf("%v: the first tier's ring is that of a service without tiers: %v, lists: %d", mode, same, len(got.Ring.Lists))
		}
		below := got.Tiers[1].Ring
		for slot := range below.Slots {
			row := below.Row(slot)
			oldest := row[below.Lists[below.Slots[slot].Next&^model.ListFlag].Oldest[0]]
			if got.Backends[row[0]].Tier != 1 || oldest != want.Ring.Slots[slot].Owner {
				t.Fatalf("%v: slot %d of tier 1 has the row %v, the oldest is %d; tier 0's owner is %d", mode, slot, row, oldest, want.Ring.Slots[slot].Owner)
			}
		}
	}
}

// A switch of tiers moves no slot: a slot moves when its owner in its tier is another one.
func TestTiersMoveNoSlots(t *testing.T) {
	s := tieredWeb(2, 2)
	before := planOne(t, s, nil)
	down := Health{targetOf(&s, 0): model.HealthDown, targetOf(&s, 1): model.HealthDown}
	after := planOne(t, s, down)
	if n := slotsMoved(&before, &after); after.Tier != 1 || n != 0 {
		t.Errorf("tier %d becomes active, and %d slots have moved", after.Tier, n)
	}
	s.Backends[3].Weight = 0
	less := planOne(t, s, down)
	if n := slotsMoved(&before, &less); n == 0 {
		t.Error("tier 1 has lost a backend, and no slot has moved")
	}
}

// Logs are trimmed alike whichever tier a director uses: generations that hold slots of any tier are held.
func TestHeldOfAllTiers(t *testing.T) {
	s := tieredWeb(6, 6)
	log := history.Advance(model.Log{}, &s, time.Time{})
	for i := range 5 {
		s.Backends = slices.Clone(s.Backends)
		for _, drains := range []int{i, 6 + i} {
			s.Backends[drains].Weight = 0
		}
		log = history.Advance(log, &s, time.Time{}.Add(time.Duration(i+1)*time.Second))
	}
	p, down := NewPlanner(), Health{}
	held := func() []uint64 {
		_, report := p.Plan(config(s), Logs{s.ID(): log}, down)
		numbers := slices.Clone(report.Services[0].HeldAt)
		slices.Sort(numbers)
		return numbers
	}
	first := held()
	for i := range 6 {
		down[targetOf(&s, i)] = model.HealthDown
	}
	second := held()
	if len(first) == 0 || !slices.Equal(first, second) || !slices.Equal(first, slices.Sorted(maps.Keys(HeldAt([]model.Service{s}, Logs{s.ID(): log})[s.ID()]))) {
		t.Errorf("the generations %v are held by a director that uses tier 0, and %v by one that uses tier 1", first, second)
	}
}

// Agents of backends of any tier keep the slots of an older generation that these own in their tiers.
func TestReportsOfTiers(t *testing.T) {
	s := tieredWeb(2, 2)
	log := history.Advance(model.Log{}, &s, time.Time{})
	old := log.Generations[0]
	s.Backends[3].Weight = 1
	newer := history.Advance(log, &s, time.Time{}.Add(time.Minute)).Generations[:1]
	newer[0].Members = slices.DeleteFunc(slices.Clone(newer[0].Members), func(m model.Member) bool { return m.Backend == s.Backends[3].Endpoint() })
	used := model.NewSlotSet(16 * 1021)
	for i := range used.Size() {
		used.Add(i)
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	report := model.AgentReport{Backend: s.Backends[3].Address, Taken: at, Services: []model.ReportedService{{ServiceID: s.ID(), Used: used}}}
	var e Evidence
	e.Renew(map[model.HostAddress]model.AgentReport{report.At(): report}, true, at)
	needed := e.Needed(&s, &old, newer, at)
	of := old.InTier(1)
	ring := makeRing(&of)
	for slot := range int(old.Slots) {
		member := of.Members[ring.Owners[slot]].Backend
		backup := of.Members[ring.Backups[slot]].Backend
		owns := member == s.Backends[3].Endpoint() || backup == s.Backends[3].Endpoint()
		if needed.Has(slot) != owns {
			t.Fatalf("slot %d of tier 1, of %v and %v, is needed: %v", slot, member, backup, needed.Has(slot))
		}
	}
	if needed.Count() == 0 {
		t.Error("no slot is needed")
	}
}
