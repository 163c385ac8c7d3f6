// Package group says what the directors of a group forward, and which nodes they are: how
// Services are written with their histories for all directors alike, who is chosen, and who
// answers for which VIP. It is pure: no clock, no API server.
package group

import (
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// Advance returns a Service's services with the logs that follow those which they had: what a
// service has become is a new generation, of which all directors know for the notice before one
// places connections by it, and what no connection needs any more is taken out. It is what a
// director does with a set of its own.
func Advance(before []model.Document, services []model.Service, notice time.Duration, now time.Time) []model.Document {
	known := make(map[model.ServiceID]model.Document, len(before))
	for _, d := range before {
		known[d.Service.ID()] = d
	}
	held := holds(before)
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
	held := holds(documents)
	var first time.Time
	for i := range documents {
		d := &documents[i]
		due := history.Due(d.Log, &d.Service, held[d.Service.ID()], nil, now)
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	return first
}

// holds returns the generations that place connections of slots for which newer ones have no
// room yet.
func holds(documents []model.Document) map[model.ServiceID]history.Held {
	services, logs := make([]model.Service, len(documents)), make(engine.Logs, len(documents))
	for i, d := range documents {
		services[i], logs[d.Service.ID()] = d.Service, d.Log
	}
	return engine.HeldAt(services, logs)
}
