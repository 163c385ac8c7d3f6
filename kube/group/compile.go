// Package group says what the directors of a group forward, and which nodes they are: how Services
// are written with their histories for all directors alike, which nodes are chosen, and which node
// answers for which VIP. It is pure: no clock, no API server.
package group

import (
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// History continues the logs of one Service. The zero value knows nothing yet.
type History struct {
	planner *engine.Planner // with the rings of long logs; nil: no log is long
}

// Advance returns a Service's services with the logs that follow their earlier ones. What a service
// has become is a new generation, which all directors know for the notice before one places
// connections by it. What no connection needs any more is taken out. A director does the same with
// a set of its own.
func (h *History) Advance(before []model.Document, services []model.Service, notice time.Duration, now time.Time) []model.Document {
	known := make(map[model.ServiceID]model.Document, len(before))
	for _, d := range before {
		known[d.Service.ID()] = d
	}
	held := h.held(before)
	after := make([]model.Document, len(services))
	for i := range services {
		s := &services[i]
		was := known[s.ID()]
		log, _ := history.Trim(was.Log, s, held[s.ID()], nil, now)
		after[i] = model.Document{Service: *s, Log: history.Announce(history.Advance(log, s, now), log, notice)}
	}
	return after
}

// Due returns when Advance next takes something out although the services stay what they are,
// or the zero time.
func Due(documents []model.Document, now time.Time) time.Time {
	var first time.Time
	for i := range documents {
		d := &documents[i]
		due := history.Due(d.Log, &d.Service, nil, nil, now)
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	return first
}

// held returns the generations that place connections of slots for which newer ones have no room
// yet. To find out, it makes rows, which takes a second for 1,000 backends with 40 generations. So
// it looks only at logs in which a row may be too long, and which are not too large. A generation
// may leave a larger log while it still places connections of some slots: these are then in
// directors' memories of flows.
func (h *History) held(documents []model.Document) map[model.ServiceID]history.Held {
	var services []model.Service
	logs := engine.Logs{}
	for i := range documents {
		if d := &documents[i]; mayHold(&d.Log) {
			services = append(services, d.Service)
			logs[d.Service.ID()] = d.Log
		}
	}
	if len(services) == 0 {
		h.planner = nil
		return nil
	}
	if h.planner == nil {
		h.planner = engine.NewPlanner()
	}
	return h.planner.HeldAt(services, logs)
}

// mostSlots bounds the slots of all generations of a log: rows are made only for logs within it.
const mostSlots = 1 << 19

// mostNamed is the least bound on the candidates in a row (docs/internals/consistency.md).
const mostNamed = 6

// mayHold reports whether a row may be too long: the newest generation names two candidates in it,
// and each older one with the same slots one more, unless connections are placed on backups, too.
func mayHold(log *model.Log) bool {
	slots := 0
	for i := range log.Generations {
		slots += int(log.Generations[i].Slots)
	}
	if slots > mostSlots {
		return false
	}
	for i := range log.Generations {
		g, newest := &log.Generations[i], &log.Generations[0]
		if g.Slots != newest.Slots || g.Affinity != newest.Affinity || g.Policy == model.P2C {
			return len(log.Generations) > 2
		}
	}
	return 1+len(log.Generations) > mostNamed
}
