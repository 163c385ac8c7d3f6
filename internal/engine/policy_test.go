package engine

import (
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// Turns are those of the generation that places connections, by its weights, of members
// that are there; only policies that choose among all have any.
func TestTurns(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name   string
		policy model.Policy
		change func(s *model.Service) // after the first generation
		coming int
		want   []uint32
	}{
		{"maglev", model.Maglev, nil, 0, nil},
		{"p2c in gue", model.P2C, nil, 0, nil},
		{"p2c elsewhere", model.P2C, func(s *model.Service) { s.Mode = model.NAT }, 0, []uint32{0, 1, 2, 0}},
		{"p2c redirected", model.P2C, func(s *model.Service) { s.Mode = model.Redirect }, 0, []uint32{0, 1, 2, 0}},
		{"by weight", model.RoundRobin, nil, 0, []uint32{0, 1, 2, 0}},
		{"each once", model.Random, nil, 0, []uint32{0, 1, 2}},
		{"each once, too", model.LeastConn, nil, 0, []uint32{0, 1, 2}},
		{"who drains has none", model.RoundRobin, func(s *model.Service) { s.Backends[0].State = model.Draining }, 0, []uint32{1, 2}},
		{"without weight none", model.LeastConn, func(s *model.Service) { s.Backends[1].Weight = 0 }, 0, []uint32{0, 2}},
		{"other weights", model.RoundRobin, func(s *model.Service) { s.Backends[2].Weight = 200 }, 0, []uint32{0, 2, 1, 0, 2}},
		{"other weights come", model.RoundRobin, func(s *model.Service) { s.Backends[2].Weight = 200 }, 1, []uint32{0, 1, 2, 0}},
		{"who comes has none yet", model.Random, func(s *model.Service) { s.Backends = append(s.Backends, web(4).Backends[3]) }, 1, []uint32{0, 1, 2}},
		{"who is removed has none", model.Random, func(s *model.Service) { s.Backends = s.Backends[1:] }, 1, []uint32{0, 1}},
		{"all of its members are removed", model.RoundRobin, func(s *model.Service) { s.Backends = web(4).Backends[3:] }, 1, []uint32{0}},
	} {
		s := web(3)
		s.Policy, s.Backends[0].Weight = test.policy, 200
		log := history.Advance(model.Log{}, &s, begin)
		if test.change != nil {
			test.change(&s)
			log = history.Advance(log, &s, begin.Add(time.Second))
		}
		log.Coming = test.coming
		table, _ := Plan(config(s), Logs{s.ID(): log}, nil)
		if got := table.Services[0].Ring.Turns; !slices.Equal(got, test.want) {
			t.Errorf("%s: turns are of %v, want %v", test.name, got, test.want)
		}
	}
}

// There are no more turns than slots, and weights are those that loads are divided by.
func TestTurnsOfManyWeights(t *testing.T) {
	s := web(3)
	s.Policy, s.RingSize = model.RoundRobin, 251
	for i := range s.Backends {
		s.Backends[i].Weight = uint16(10007 * (i + 1))
	}
	s.Backends[0].Weight++
	table, _ := Plan(config(s), nil, nil)
	had := [3]int{}
	for _, i := range table.Services[0].Ring.Turns {
		had[i]++
	}
	if had != [3]int{42, 84, 125} { // 251 by 10008, 20014 and 30021
		t.Errorf("turns are %v, want 42, 84 and 125 of as many as slots", had)
	}
	s.Policy = model.LeastConn
	table, _ = Plan(config(s), nil, nil)
	for i, b := range table.Services[0].Backends {
		if b.Weight != s.Backends[i].Weight {
			t.Errorf("the load of backend %d is divided by %d, want %d", i, b.Weight, s.Backends[i].Weight)
		}
	}
}
