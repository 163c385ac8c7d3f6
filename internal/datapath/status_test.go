package datapath

import (
	"slices"
	"testing"

	"weir.io/weir/internal/model"
)

// New connections of a backend that is down go to others: shares say where.
func TestSharesFollowStates(t *testing.T) {
	const down, active, draining = model.Down, model.Active, model.Draining
	slots := []model.Slot{{Owner: 0, Next: 1}, {Owner: 0, Next: model.ListFlag}, {Owner: 1, Next: model.NoBackend}, {Owner: 2, Next: 0}}
	ring := model.Ring{Slots: slots, Lists: []model.CandidateList{{Next: []uint32{1, 2}}}}
	turns := model.Ring{Slots: slots, Lists: ring.Lists, Turns: []uint32{0, 1, 0, 2}}
	for _, c := range []struct {
		name   string
		policy model.Policy
		ring   model.Ring
		states [3]model.BackendState
		want   []float64 // nil: none is said
	}{
		{"all are up", model.Maglev, ring, [3]model.BackendState{active, active, active}, []float64{0.5, 0.25, 0.25}},
		{"one is down", model.Maglev, ring, [3]model.BackendState{down, active, active}, []float64{0, 0.75, 0.25}},
		{"two are down", model.Maglev, ring, [3]model.BackendState{down, down, active}, []float64{0, 0, 0.5}},
		{"an owner drains", model.Maglev, ring, [3]model.BackendState{draining, active, down}, []float64{0.75, 0.25, 0}},
		{"turns", model.RoundRobin, turns, [3]model.BackendState{active, active, active}, []float64{0.5, 0.25, 0.25}},
		{"turns without one", model.RoundRobin, turns, [3]model.BackendState{down, active, active}, []float64{0, 0.5, 0.5}},
		{"all turns drain", model.RoundRobin, turns, [3]model.BackendState{draining, draining, draining}, []float64{0.5, 0.25, 0.25}},
		{"all turns are down", model.RoundRobin, turns, [3]model.BackendState{down, down, down}, []float64{0, 0, 0}},
		{"by load", model.LeastConn, turns, [3]model.BackendState{active, active, active}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			backends := []model.BackendStatus{{State: c.states[0], Slots: 2}, {State: c.states[1], Slots: 1}, {State: c.states[2], Slots: 1}}
			var kept shares
			of := &model.TableService{Policy: c.policy, Ring: c.ring}
			kept.fill([]*model.TableService{of}, []model.ServiceStatus{{Backends: make([]model.BackendStatus, len(backends))}}) // of other states
			kept.fill([]*model.TableService{of}, []model.ServiceStatus{{Backends: backends}})
			var got []float64
			for _, b := range backends {
				if b.Share != nil {
					got = append(got, *b.Share)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("shares %v, want %v", got, c.want)
			}
		})
	}
}
