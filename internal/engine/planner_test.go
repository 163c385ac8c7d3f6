package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// mutate changes a configuration a little, as people do.
func mutate(r *rand.Rand, c model.Config) model.Config {
	services := slices.Clone(c.Services)
	if len(services) < 2 || r.IntN(6) == 0 {
		s := web(1 + r.IntN(12))
		s.Name = fmt.Sprintf("service-%x", r.Uint32())
		s.VIP = netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(256))})
		return config(append(services, s)...)
	}
	i := r.IntN(len(services))
	s := services[i]
	s.Backends = slices.Clone(s.Backends)
	switch b := &s.Backends[r.IntN(len(s.Backends))]; r.IntN(6) {
	case 0:
		b.State = []model.BackendState{model.Active, model.Draining, model.Down}[r.IntN(3)]
	case 1:
		b.Weight = uint16(r.IntN(4))
	case 2:
		b.Name += "x"
	case 3:
		r.Shuffle(len(s.Backends), func(i, j int) { s.Backends[i], s.Backends[j] = s.Backends[j], s.Backends[i] })
	case 4:
		return config(slices.Delete(services, i, i+1)...)
	case 5:
		s.RingSize = []uint32{0, 101, 2003}[r.IntN(3)]
	}
	services[i] = s
	return config(services...)
}

func TestMemoryChangesNoResult(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	p := NewPlanner()
	c := config()
	for step := range 200 {
		c = mutate(r, c)
		table, report := p.Plan(c, nil, nil)
		wantTable, wantReport := Plan(c, nil, nil)
		if !reflect.DeepEqual(table, wantTable) || !reflect.DeepEqual(report, wantReport) {
			t.Fatalf("step %d: a planner that remembers plans otherwise than one that does not", step)
		}
		if n := len(c.Services); len(p.rings.rings) > n || len(p.rows.values) > n {
			t.Fatalf("step %d: %d services, but %d rings and %d rows are remembered", step, n, len(p.rings.rings), len(p.rows.values))
		}
	}
}

// Unchanged parts are the same memory in the next table, which is quick to compare.
// Changed parts are not: the last table is still in use.
func TestUnchangedBackendsAreShared(t *testing.T) {
	services := func() []model.Service {
		other := web(3)
		other.Name, other.VIP = "other", netip.MustParseAddr("192.0.2.9")
		return []model.Service{web(3), other}
	}
	p := NewPlanner()
	before, _ := p.Plan(config(services()...), nil, nil)
	changed := services()
	changed[1].Backends[2].State = model.Draining
	after, _ := p.Plan(config(changed...), nil, nil)
	first := func(t model.Table, i int) *model.TableBackend { return &t.Services[i].Backends[0] }
	if first(before, 0) != first(after, 0) {
		t.Error("backends that did not change were made anew")
	}
	if first(before, 1) == first(after, 1) || before.Services[1].Backends[2].State != model.Active {
		t.Error("the last table was written to")
	}
}

func TestEqualMembersShareTheirRing(t *testing.T) {
	other, shuffled, different := web(20), web(20), web(21)
	other.Name, other.VIP = "other", netip.MustParseAddr("192.0.2.9")
	slices.Reverse(shuffled.Backends)
	p := NewPlanner()
	table, _ := p.Plan(config(web(20), other, shuffled, different), nil, nil)
	if len(p.rings.rings) != 2 || len(p.rows.values) != 3 {
		t.Errorf("%d rings and %d rows were made, want 2 and 3", len(p.rings.rings), len(p.rows.values))
	}
	first := func(i int) *model.Slot { return &table.Services[i].Ring.Slots[0] }
	if first(0) != first(1) || first(0) == first(2) {
		t.Error("services share their slots otherwise than their members")
	}
	for i, slot := range table.Services[0].Ring.Slots {
		if got := table.Services[2].Ring.Slots[i]; got.Owner != 19-slot.Owner || got.Next != 19-slot.Next {
			t.Fatalf("slot %d: in reverse order %v became %v", i, slot, got)
		}
	}
	again, _ := p.Plan(config(different, web(20)), nil, nil)
	if first(0) != &again.Services[1].Ring.Slots[0] {
		t.Error("an unchanged ring was computed again")
	}
}

// many is n services of 64 backends each: the same ones, or each its own.
func many(n int, own bool) model.Config {
	c := config()
	for i := range n {
		s := web(64)
		s.Name = fmt.Sprintf("service-%d", i)
		s.VIP = netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
		if own {
			for j := range s.Backends {
				s.Backends[j].Port = uint16(1 + i)
			}
		}
		c.Services = append(c.Services, s)
	}
	return c
}

func benchmarkPlan(b *testing.B, c model.Config, planner func() *Planner) {
	b.ReportAllocs()
	for b.Loop() {
		planner().Plan(c, nil, nil)
	}
}

func BenchmarkPlan(b *testing.B) {
	for name, c := range map[string]model.Config{
		"services=4096/backends=64/members=same": many(4096, false),
		"services=256/backends=64/members=own":   many(256, true),
		"services=1/backends=4000":               config(web(4000)),
	} {
		b.Run(name+"/first", func(b *testing.B) { benchmarkPlan(b, c, NewPlanner) })
		p := NewPlanner()
		p.Plan(c, nil, nil)
		b.Run(name+"/again", func(b *testing.B) { benchmarkPlan(b, c, func() *Planner { return p }) })
	}
}

// A director that learns late that a backend went and came back has placed connections
// with it by the rings of before: they are found where the rows have room.
func TestWhoCameBackIsNamedWhereItWas(t *testing.T) {
	s := web(4)
	members := func(weight uint16, backends ...int) (all []model.Member) {
		for _, i := range backends {
			all = append(all, model.Member{Backend: s.Backends[i].Endpoint(), Weight: weight})
			weight = 100
		}
		return all
	}
	gone := []netip.AddrPort{s.Backends[3].Endpoint()}
	log := model.Log{Generations: []model.Generation{
		{Number: 3, Slots: 251, Members: members(300, 0, 1, 2, 3)},
		{Number: 2, Slots: 251, Members: members(100, 0, 1, 2)},
		{Number: 1, Slots: 251, Members: members(100, 0, 1, 2, 3), Gone: gone},
	}}
	m := membershipsOf(&s, log)[0].now
	rings := map[digest]maglev.Generation{}
	for i := range m.log {
		key := m.log[i].ring
		rings[key] = makeRing(&log.Generations[i])
	}
	table := m.makeRows(func(g *located) maglev.Generation { return rings[g.ring] })
	owned := 0
	for slot, position := range rings[m.log[2].ring].Owners {
		if position != 3 || table.ring.Slots[slot].Owner == 3 {
			continue
		}
		owned++
		row := []uint32{table.ring.Slots[slot].Owner}
		if next := table.ring.Slots[slot].Next; next&maglev.ListFlag != 0 {
			row = append(row, table.ring.Lists[next&^maglev.ListFlag].Next...)
		} else {
			row = append(row, next)
		}
		if !slices.Contains(row, 3) {
			t.Errorf("slot %d was backend 3's before it went, and its row is %v", slot, row)
		}
	}
	if owned == 0 {
		t.Fatal("backend 3 owned no slot that is somebody else's now")
	}
}
