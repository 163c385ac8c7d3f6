package engine

import (
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// advance brings the logs to what is desired: what no connection needs any more goes
// out, and what each service has become comes in.
func (e *Engine) advance(desired model.Config, now time.Time) {
	logs := make(Logs, len(desired.Services))
	for i := range desired.Services {
		s := &desired.Services[i]
		id := s.ID()
		log, overdue := history.Trim(e.logs[id], s, e.held[id], nil, now)
		for _, g := range overdue {
			e.log.Warn("a generation that agents report connections of has left the log at max-drain",
				"service", s.Name, "generation", g.Number, "since", g.Since)
		}
		logs[id] = history.Advance(log, s, now)
	}
	e.logs = logs
}

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

// nextTrim fires when a generation may leave some log, or never.
func (e *Engine) nextTrim(desired model.Config, now time.Time) <-chan time.Time {
	var first time.Time
	for i := range desired.Services {
		s := &desired.Services[i]
		due := history.Due(e.logs[s.ID()], s, nil)
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(max(first.Sub(now), leastPause))
}
