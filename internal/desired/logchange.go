package desired

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// logChange is a change of a store that writes logs. The store may make it several times: each time
// begins anew, and the last one counts.
type logChange struct {
	make     func(*logChange, store.State) (store.State, error)
	engine   Engine
	evidence history.Evidence
	know     func(store.State) knowledge
	applied  engine.Logs // by which this director forwards

	leftover func(owner string) []store.Document // from before this director joined the group, for an owner whose set the group gets
	notice   time.Duration                       // of a new generation; 0: no other director has to learn of it

	now    time.Time
	known  knowledge
	others map[model.ServiceID]history.Held // by logs that this director does not forward by
	left   []departure

	reshared []reshared
}

// departure is a generation that has left the log of a service.
type departure struct {
	service string
	history.Departure
}

func (l *logChange) change(s store.State) (store.State, error) {
	l.known, l.left, l.reshared = l.know(s), nil, nil
	l.now = l.known.now
	l.others = l.heldByOthers(s)
	return l.make(l, s)
}

// heldByOthers returns the generations that place connections by logs that other directors, or an
// earlier process, have applied already: it makes rings for this.
func (l *logChange) heldByOthers(s store.State) map[model.ServiceID]history.Held {
	var services []model.Service
	logs := engine.Logs{}
	for d := range s.All() {
		if id := d.Service.ID(); !sameLog(d.Log, l.applied[id]) {
			services = append(services, d.Service)
			logs[id] = d.Log
		}
	}
	return engine.HeldAt(services, logs)
}

// held returns the generations that still place connections of a service, though newer ones have
// replaced them.
func (l *logChange) held(id model.ServiceID) history.Held {
	held := history.Held{}
	maps.Copy(held, l.engine.Held(id))
	maps.Copy(held, l.others[id])
	return held
}

// successor returns the log of a service that replaces a document: generations that no connection
// needs leave, and a generation of the new service is added.
func (l *logChange) successor(before store.Document, s *model.Service) model.Log {
	log, left := history.Trim(before.Log, s, l.held(before.Service.ID()), l.evidence, l.now)
	log = l.reshare(log, before.Log, s)
	next := history.Announce(history.Advance(log, s, l.now), log, l.notice)
	for _, g := range log.Generations {
		if !slices.ContainsFunc(next.Generations, func(n model.Generation) bool { return n.Number == g.Number }) {
			left = append(left, history.Departure{Generation: g, Cause: history.Repeated})
		}
	}
	for _, d := range left {
		l.left = append(l.left, departure{s.Name, d})
	}
	return next
}

// newLogChange returns a change of the store that the group shares, or of this director's own store.
// It is called with the lock held.
func (c *Controller) newLogChange(shared bool, make func(*logChange, store.State) (store.State, error)) *logChange {
	know := func(s store.State) knowledge { return c.knows(s, shared) }
	l := &logChange{engine: c.engine, evidence: c.evidence, know: know, applied: c.applied, make: make}
	if shared {
		l.notice = time.Duration(c.file.Notice)
		own := c.state
		l.leftover = func(owner string) []store.Document { return own.Sets[owner].Documents }
	}
	return l
}

// replaceWith returns the change that makes services the whole of an owner's set. Like trim, it is
// called with the lock held.
func (c *Controller) replaceWith(shared bool, owner string, services []model.Service) *logChange {
	return c.newLogChange(shared, func(l *logChange, s store.State) (store.State, error) {
		return l.replace(s, owner, services)
	})
}

// replace returns the state in which services are the whole of an owner's set.
func (l *logChange) replace(s store.State, owner string, services []model.Service) (store.State, error) {
	documents := s.Sets[owner].Documents
	if len(documents) == 0 && l.leftover != nil {
		documents = l.leftover(owner)
	}
	before := make(map[model.ServiceID]store.Document, len(documents))
	for _, d := range documents {
		before[d.Service.ID()] = d
	}
	return store.Replace(owner, services, func(_ model.Log, s model.Service) model.Log {
		return l.successor(before[s.ID()], &s)
	})(s)
}

// trim returns the change that brings logs up to date: those with a generation that is due to
// leave, or keeps notably more than agents report, or with backends that should get other shares.
// The second director to do it finds nothing to do.
func (c *Controller) trim(shared bool) *logChange {
	return c.newLogChange(shared, func(l *logChange, s store.State) (store.State, error) {
		return store.Trim(func(log model.Log, s model.Service) model.Log {
			due := history.Due(log, &s, l.held(s.ID()), l.evidence, l.now)
			late := !due.IsZero() && !l.now.Before(due) || l.known.dueToStep(log, &s).Equal(l.now)
			if !late && !awaitsReports(log, &s, l.evidence) {
				return log
			}
			left, shares := len(l.left), len(l.reshared)
			next := l.successor(store.Document{Service: s, Log: log}, &s)
			if !late && !history.Shrunk(log, next, l.held(s.ID())) {
				l.left, l.reshared = l.left[:left], l.reshared[:shares]
				return log
			}
			return next
		})(s)
	})
}

// awaitsReports reports whether a log may be trimmed when agents report.
func awaitsReports(log model.Log, s *model.Service, evidence history.Evidence) bool {
	return history.Kept(log) > 0 && evidence.Reported(s)
}

// sameLog is quick if both are the same log.
func sameLog(a, b model.Log) bool {
	return model.SameMemory(a.Generations, b.Generations) || reflect.DeepEqual(a, b)
}

// settle counts what a change has taken out of the logs, warns if it was still needed, and logs
// which backends start slowly or are strained. It is called with the lock held.
func (c *Controller) settle(l *logChange) {
	for _, d := range l.left {
		c.left[d.Cause]++
		if d.Cause == history.Overdue {
			c.log.Warn("a generation that agents report connections of, or are silent about, or that directors see some of, has left the log at max-retention",
				"service", d.service, "generation", d.Number, "since", d.Since)
		}
	}
	for _, s := range l.reshared {
		if !sameSteps(s.before, s.after) {
			c.log.Info("backends that start slowly have other shares", "service", s.service, "steps", s.starting())
		}
		if !sameStrain(s.before, s.after) {
			c.log.Warn("backends that are strained have other shares", "service", s.service, "strained", s.strained())
		}
	}
}

// Left returns how many generations have left logs in changes that this controller made, by the cause.
// In a group one director counts each.
func (c *Controller) Left() map[history.Cause]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.left)
}

// Revision returns the revision of the group's state that is followed, or 0.
func (c *Controller) Revision() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shared.Revision
}
