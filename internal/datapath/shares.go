package datapath

import (
	"slices"
	"sync"

	"weir.io/weir/internal/model"
)

// shares are the parts of new connections that backends get, as they were computed last. Where a backend
// is down, computing them reads all slots. They are read every second, and states change rarely.
type shares struct {
	mu   sync.Mutex
	last map[string]share // by service
}

// share is what was worked out of a ring, with these states. An unchanged ring is the same memory.
type share struct {
	policy model.Policy
	slots  []model.Slot
	turns  []uint32
	states []model.BackendState
	of     []float64
}

func (s *share) holds(t *model.TableService, backends []model.BackendStatus) bool {
	return s.policy == t.Policy && model.SameMemory(s.slots, t.Ring.Slots) && model.SameMemory(s.turns, t.Ring.Turns) &&
		slices.EqualFunc(s.states, backends, func(state model.BackendState, b model.BackendStatus) bool { return state == b.State })
}

// fill writes the shares of services, each of which is of the desired one at its place.
func (s *shares) fill(desired []*model.TableService, services []model.ServiceStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := make(map[string]share, len(desired))
	for i, t := range desired {
		backends := services[i].Backends
		last := s.last[t.Name]
		if !last.holds(t, backends) {
			last = share{policy: t.Policy, slots: t.Ring.Slots, turns: t.Ring.Turns, of: sharesOf(t, backends)}
			for b := range backends {
				last.states = append(last.states, backends[b].State)
			}
		}
		now[t.Name] = last
		for b := range last.of {
			backends[b].Share = &last.of[b]
		}
	}
	s.last = now
}

// sharesOf says which part of new connections each backend gets as the states are now; nil: that goes
// by loads.
func sharesOf(t *model.TableService, backends []model.BackendStatus) (shares []float64) {
	if t.Policy.ByLoad() {
		return nil
	}
	up := func(b uint32) bool { return backends[b].State.Alive() }
	gets, of := make([]int, len(backends)), 0
	if t.Policy == model.RoundRobin {
		for _, b := range t.Ring.Turns {
			if backends[b].State == model.Active {
				gets[b]++
				of++
			}
		}
	}
	switch {
	case of > 0: // else no backend's turn comes, and the ring places all
	case slices.ContainsFunc(backends, func(b model.BackendStatus) bool { return b.Slots > 0 && !b.State.Alive() }):
		of = len(t.Ring.Slots)
		for _, slot := range t.Ring.Slots {
			if b := t.Ring.Receiver(slot, up); b != model.NoBackend {
				gets[b]++
			}
		}
	default:
		of = len(t.Ring.Slots)
		for i := range backends {
			gets[i] = backends[i].Slots
		}
	}
	for _, n := range gets {
		shares = append(shares, float64(n)/float64(max(of, 1)))
	}
	return shares
}
