package engine

import (
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// The policy is what the newest generation has: what waits for room in the log is not
// forwarded by. Weights count where loads do, of backends that may get connections.
func TestPolicyIsThatOfTheNewestGeneration(t *testing.T) {
	s := web(3)
	s.Backends[1].State, s.Backends[2].Weight = model.Draining, 7
	for _, test := range []struct{ asked, newest, want model.Policy }{
		{model.Maglev, model.Maglev, model.Maglev},
		{model.P2C, model.P2C, model.P2C},
		{model.P2C, model.Maglev, model.Maglev},
		{model.Maglev, model.P2C, model.Maglev},
	} {
		s.Policy = test.newest
		log := history.Advance(model.Log{}, &s, time.Unix(0, 0))
		s.Policy = test.asked
		table, _ := Plan(config(s), Logs{s.ID(): log}, nil)
		got := table.Services[0]
		weights := [3]uint16{got.Backends[0].Weight, got.Backends[1].Weight, got.Backends[2].Weight}
		want := [3]uint16{}
		if test.want == model.P2C {
			want = [3]uint16{100, 0, 7}
		}
		if got.Policy != test.want || weights != want {
			t.Errorf("asked for %v, and the newest generation has %v: %v with weights %v, want %v with %v",
				test.asked, test.newest, got.Policy, weights, test.want, want)
		}
	}
}

// A load is divided by the part of its weight that a backend has that starts slowly.
func TestLoadsOfWhoStartsSlowly(t *testing.T) {
	s := web(3)
	s.Policy = model.P2C
	s.Backends[1].Weight = 2
	step := func(i int, number uint8) model.Step {
		return model.Step{Backend: s.Backends[i].Endpoint(), Number: number}
	}
	log := history.Advance(model.Log{Steps: []model.Step{step(0, 3), step(1, 3)}}, &s, time.Unix(0, 0))
	table, report := Plan(config(s), Logs{s.ID(): log}, nil)
	for i, want := range []uint16{37, 1, 100} {
		if got := table.Services[0].Backends[i].Weight; got != want {
			t.Errorf("the load of backend %d is divided by %d, want %d", i, got, want)
		}
	}
	if report.Services[0].Starting != 2 {
		t.Errorf("%d backends are reported to start slowly, want 2", report.Services[0].Starting)
	}
}

// A newer generation that names somebody as its backup is no reason to let one go that
// has placed connections there, unless it does so, too: only then he stays in rows.
func TestConnectionsOfBackupsKeepGenerations(t *testing.T) {
	s := web(3)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := begin.Add(s.RetentionOrDefault())
	for _, test := range []struct {
		older, newer model.Policy
		kept         bool
	}{
		{model.P2C, model.Maglev, true},
		{model.Maglev, model.P2C, false},
	} {
		s.Policy = test.older
		log := history.Advance(model.Log{}, &s, begin)
		s.Policy = test.newer
		log = history.Advance(log, &s, begin)
		ring := makeRing(&log.Generations[1])
		backup := log.Generations[1].Members[ring.Backups[0]].Backend.Addr()
		reports := map[model.HostAddress]model.AgentReport{}
		for i, b := range s.Backends {
			reports[b.AddressIn(&s)] = reportOf(&s, i, at)
			if b.Address == backup {
				reports[b.AddressIn(&s)] = reportOf(&s, i, at, 1<<31/uint64(len(ring.Owners))<<32) // in the middle of slot 0
			}
		}
		var e Evidence
		e.Renew(reports, true, at)
		trimmed, left := history.Trim(log, &s, nil, &e, at)
		switch {
		case test.kept && (len(trimmed.Generations) != 2 || !trimmed.Generations[1].Kept.Has(0)):
			t.Errorf("%v, then %v: a generation left a slot whose backup has a connection: %v", test.older, test.newer, trimmed)
		case !test.kept && len(left) != 1:
			t.Errorf("%v, then %v: a generation stays of which all candidates are in the newer one: %v", test.older, test.newer, trimmed)
		}
	}
}
