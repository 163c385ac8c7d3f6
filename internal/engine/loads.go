package engine

import (
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/turns"
)

// Loads says which services have known loads: internal/loads.
type Loads interface {
	// Follow replaces the services that it looks after.
	Follow(services []model.TableService)
	// Degraded reports whether no loads are known for a service that is placed by load.
	Degraded(id model.ServiceID) bool
	// Changed is sent to when what Degraded returns has changed.
	Changed() <-chan struct{}
}

// loads are Loads, or none, and the turns of services without loads.
type loads struct {
	Loads
	turns map[model.ServiceID]turnsBy
}

// turnsBy are turns, and what they were made from: a ring is not written again if its turns are the
// same memory.
type turnsBy struct {
	weights []uint16
	order   []uint32
	slots   int
}

// changed is never sent to when no loads are reported.
func (l *loads) changed() <-chan struct{} {
	if l.Loads == nil {
		return nil
	}
	return l.Changed()
}

// degrade returns the table with round-robin in place of policies without known loads. p2c in mode
// gue stays: its connections have to be on one of two backends. It compares what the director
// itself has opened, which is even on both from then on.
func (l *loads) degrade(table model.Table) model.Table {
	if l.Loads == nil {
		return table
	}
	l.Follow(table.Services)
	before := l.turns
	l.turns = map[model.ServiceID]turnsBy{}
	own := false // the services are the planner's memory until one changes
	for i := range table.Services {
		s := &table.Services[i]
		id := s.ID()
		if !s.Policy.ByLoad() || !s.AmongAll() || !l.Degraded(id) {
			continue
		}
		if !own {
			table.Services, own = slices.Clone(table.Services), true
			s = &table.Services[i]
		}
		t := turnsOf(s, before[id])
		l.turns[id] = t
		s.Policy, s.Ring.Turns = model.RoundRobin, t.order
	}
	return table
}

// turnsOf returns the turns of a service's members, by the weights that loads are divided by.
func turnsOf(s *model.TableService, before turnsBy) turnsBy {
	now := turnsBy{weights: make([]uint16, len(s.Backends)), slots: len(s.Ring.Slots)}
	for _, position := range s.Ring.Turns {
		now.weights[position] = s.Backends[position].Weight
	}
	if before.order != nil && before.slots == now.slots && slices.Equal(before.weights, now.weights) {
		return before
	}
	if now.order = turns.Order(now.weights, now.slots); len(now.order) == 0 {
		now.order = s.Ring.Turns // no backend has a weight any more
	}
	return now
}
