package engine

import (
	"maps"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// heldAt has the generations that place connections though newer ones have replaced
// them.
type heldAt map[model.ServiceID]history.Held

func (h heldAt) note(r Report) {
	for _, s := range r.Services {
		for _, number := range s.HeldAt {
			if h[s.ID] == nil {
				h[s.ID] = history.Held{}
			}
			h[s.ID][number] = true
		}
	}
}

// Held returns the generations of a service that place connections though newer ones
// have replaced them: in the plan that runs, and in later ones that a sink may have
// taken a part of.
func (e *Engine) Held(id model.ServiceID) history.Held {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.held[id])
}

// fewestToHold is the fewest generations of a log with which a row can be too long: the
// newest names two candidates, and each older one two more where sizes differ.
const fewestToHold = 4

// HeldAt returns the numbers of the generations that hold slots of a service by a log,
// whoever forwards by it.
func HeldAt(s *model.Service, log model.Log) []uint64 {
	if len(log.Generations) < fewestToHold {
		return nil
	}
	m := newMembership(s, log)
	rings := make(map[digest]maglev.Generation, len(m.log))
	for i, ring := range m.rings {
		if _, made := rings[ring]; !made {
			rings[ring] = makeRing(&m.log[i])
		}
	}
	return m.makeRows(rings).heldAt
}
