package engine

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"weir.io/weir/internal/model"
)

// reports is Loads that a test decides upon.
type reports struct {
	changed  chan struct{}
	mu       sync.Mutex
	degraded map[model.ServiceID]bool
	followed [][]model.Policy // of each table's services, as they were planned
}

func (r *reports) Changed() <-chan struct{} { return r.changed }

func (r *reports) Degraded(id model.ServiceID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.degraded[id]
}

func (r *reports) Follow(services []model.TableService) {
	r.mu.Lock()
	defer r.mu.Unlock()
	policies := make([]model.Policy, len(services))
	for i := range services {
		policies[i] = services[i].Policy
	}
	r.followed = append(r.followed, policies)
}

func (r *reports) degrade(degraded bool, of ...*model.Service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range of {
		r.degraded[s.ID()] = degraded
	}
	r.changed <- struct{}{}
}

// tables is a forwarder that keeps all tables.
type tables struct {
	mu  sync.Mutex
	all []model.Table
}

func (s *tables) Set(t model.Table) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, t)
	return nil
}

// last returns what was set last, and how many were.
func (s *tables) last() (model.Table, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[len(s.all)-1], len(s.all)
}

// Without reported loads, least-conn is round-robin by weight, and so is p2c among all
// backends; p2c in gue stays.
func TestDegradedServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, loads := &tables{}, &reports{changed: make(chan struct{}, 1), degraded: map[model.ServiceID]bool{}}
		e := New(Deps{Forwarder: sink, Loads: loads, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go e.Run(ctx)

		least, p2c, other, any := web(3), web(3), web(3), web(3)
		least.Policy, least.Backends[0].Weight = model.LeastConn, 200
		p2c.Policy, p2c.Port = model.P2C, model.PortRange{First: 81, Last: 81}
		other.Policy, other.Port = model.Maglev, model.PortRange{First: 82, Last: 82}
		any.Policy, any.Mode, any.Port = model.P2C, model.IPIP, model.PortRange{First: 83, Last: 83}
		c := config(least, p2c, other, any)
		if err := e.Apply(c, nil); err != nil {
			t.Fatal(err)
		}
		planned := []model.Policy{model.LeastConn, model.P2C, model.Maglev, model.P2C}
		want := func(what string, sets int, first model.Policy, turns ...uint32) model.TableService {
			t.Helper()
			synctest.Wait()
			pass(healthSettle)
			synctest.Wait()
			table, n := sink.last()
			s := table.Services[0]
			if n != sets || s.Policy != first || !slices.Equal(s.Ring.Turns, turns) {
				t.Errorf("%s: after %d sets %v with turns %v, want after %d %v with %v", what, n, s.Policy, s.Ring.Turns, sets, first, turns)
			}
			if table.Services[1].Policy != model.P2C || table.Services[2].Policy != model.Maglev {
				t.Errorf("%s: the others have %v and %v", what, table.Services[1].Policy, table.Services[2].Policy)
			}
			if last := table.Services[3]; (last.Policy == model.RoundRobin) != (first == model.RoundRobin) || last.Policy == model.Maglev || !slices.Equal(last.Ring.Turns, []uint32{0, 1, 2}) {
				t.Errorf("%s: p2c among all has %v with turns %v, and least-conn has %v", what, last.Policy, last.Ring.Turns, first)
			}
			if got := loads.followed[n-1]; !slices.Equal(got, planned) {
				t.Errorf("%s: services with %v are followed, want %v, as they were planned", what, got, planned)
			}
			return s
		}
		want("all are reported", 1, model.LeastConn, 0, 1, 2)
		loads.degrade(true, &least, &p2c, &other, &any)
		before := want("none is", 2, model.RoundRobin, 0, 1, 2, 0)
		if before.Backends[0].Weight != 200 {
			t.Errorf("the load of a backend that nobody goes by now is divided by %d, want its weight", before.Backends[0].Weight)
		}
		if err := e.Apply(c, nil); err != nil {
			t.Fatal(err)
		}
		if again := want("the same again", 3, model.RoundRobin, 0, 1, 2, 0); &again.Ring.Turns[0] != &before.Ring.Turns[0] {
			t.Error("turns are made anew of which nothing has changed: rings are written for nothing")
		}
		c.Services[0].Backends = slices.Clone(c.Services[0].Backends)
		c.Services[0].Backends[0].Weight = 100
		if err := e.Apply(c, nil); err != nil {
			t.Fatal(err)
		}
		want("another weight", 4, model.RoundRobin, 0, 1, 2)
		loads.degrade(false, &least, &any)
		want("reported again", 5, model.LeastConn, 0, 1, 2)
	})
}
