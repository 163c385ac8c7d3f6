package engine

import (
	"maps"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// heldAt has the generations that still place connections though newer ones have replaced them.
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

// Held returns the generations of a service that still place connections though newer ones have
// replaced them: in the plan that runs, and in later plans that a sink may have taken in part.
func (e *Engine) Held(id model.ServiceID) history.Held {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.held[id])
}

// fewestToHold is the fewest generations of a log with which a row can be too long: the newest
// names two candidates, and each older one two more if sizes differ or policies place connections
// on backups, or four more if both.
const fewestToHold = 3

// HeldAt returns the generations that hold slots of services by their logs, whichever director
// forwards by them.
func HeldAt(services []model.Service, logs Logs) map[model.ServiceID]history.Held {
	return NewPlanner().HeldAt(services, logs)
}

// HeldAt does so with the rings that the planner made last.
func (p *Planner) HeldAt(services []model.Service, logs Logs) map[model.ServiceID]history.Held {
	var long []model.Service
	for i := range services {
		if log := logs[services[i].ID()]; len(log.Generations) >= fewestToHold || log.Coming > 0 {
			long = append(long, services[i])
		}
	}
	held := heldAt{}
	if len(long) > 0 {
		_, report := p.Plan(model.Config{Services: long}, logs, nil)
		held.note(report)
	}
	return held
}
