package desired

import (
	"cmp"
	"context"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// changedService is a service before and after a change of its set; nil: it does not exist.
type changedService struct{ before, after *store.Document }

// differences returns the services that differ between two sets: those of the later set in its order,
// then those that only the earlier one has.
func differences(before, after store.Set) (list []changedService) {
	was := make(map[model.ServiceID]*store.Document, len(before.Documents))
	for i := range before.Documents {
		was[before.Documents[i].Service.ID()] = &before.Documents[i]
	}
	for i := range after.Documents {
		d := &after.Documents[i]
		old := was[d.Service.ID()]
		delete(was, d.Service.ID())
		if old == nil || !reflect.DeepEqual(old.Service, d.Service) {
			list = append(list, changedService{old, d})
		}
	}
	for i := range before.Documents {
		if d := &before.Documents[i]; was[d.Service.ID()] != nil {
			list = append(list, changedService{d, nil})
		}
	}
	return list
}

// ChangeOf lists what differs between two states of an owner's set.
func ChangeOf(before, after store.State, owner string) model.SetChange {
	change := model.SetChange{Revision: after.Revision, Tag: after.Sets[owner].Tag()}
	for _, s := range differences(before.Sets[owner], after.Sets[owner]) {
		switch {
		case s.before == nil:
			change.Added = append(change.Added, s.after.Service.Name)
		case s.after == nil:
			change.Removed = append(change.Removed, s.before.Service.Name)
		default:
			change.Changed = append(change.Changed, s.after.Service.Name)
		}
	}
	slices.Sort(change.Removed)
	return change
}

// changeWithMoves is ChangeOf with what happens to the slots of changed services.
func changeWithMoves(before, after store.State, owner string) model.SetChange {
	c := ChangeOf(before, after, owner)
	from, to := engine.Services{Logs: engine.Logs{}}, engine.Services{Logs: engine.Logs{}}
	for _, s := range differences(before.Sets[owner], after.Sets[owner]) {
		if s.before != nil && s.after != nil {
			from.Add(s.before.Service, s.before.Log)
			to.Add(s.after.Service, s.after.Log)
		}
	}
	c.Moves = engine.Moves(from, to)
	return c
}

// Planned says what a put would change.
type Planned struct {
	model.SetChange
	Base     string // tag of the current set; "": there is none
	Group    bool   // other directors would apply it, too
	Services []PlannedService
}

// PlannedService is a service that a put would change.
type PlannedService struct {
	engine.Shift
	Before, After *store.Document // nil: it does not exist
	// Reported is what a backend's agent has lately reported about the service before the change;
	// nil: it does not report.
	Reported func(netip.AddrPort) *model.ReportedService
}

// Plan says what PutPart would change.
func (c *Controller) Plan(ctx context.Context, owner string, services []model.Service, part float64) (Planned, error) {
	before, after, err := c.tryPut(ctx, owner, &proposal{services: services, part: part})
	if err != nil {
		return Planned{}, err
	}
	planned := Planned{SetChange: ChangeOf(before, after, owner), Group: c.group != nil}
	if set, had := before.Sets[owner]; had {
		planned.Base = set.Tag()
	}
	planned.Services = plannedOf(before.Sets[owner], after.Sets[owner])
	c.renew()
	now := time.Now()
	for i := range planned.Services {
		p := &planned.Services[i]
		p.Reported = func(netip.AddrPort) *model.ReportedService { return nil }
		if p.Before != nil {
			p.Reported = c.evidence.ReportsOf(&p.Before.Service, p.Shift.Before.Affinity, now)
		}
		if p.Before != nil && p.After != nil {
			planned.Moves = append(planned.Moves, model.Move{Service: p.Is.Name, Slots: p.Is.Slots, Moved: p.Moved(), Held: p.Is.Held})
		}
	}
	return planned, nil
}

// plannedOf returns the services that differ between two sets: see differences.
func plannedOf(before, after store.Set) (list []PlannedService) {
	from, to := engine.Services{Logs: engine.Logs{}}, engine.Services{Logs: engine.Logs{}}
	for _, s := range differences(before, after) {
		if s.before != nil {
			from.Add(s.before.Service, s.before.Log)
		}
		if s.after != nil {
			to.Add(s.after.Service, s.after.Log)
		}
		list = append(list, PlannedService{Before: s.before, After: s.after})
	}
	shifts := map[model.ServiceID]engine.Shift{}
	for _, s := range engine.Shifts(from, to) {
		shifts[s.ID] = s
	}
	for i := range list {
		d := cmp.Or(list[i].After, list[i].Before)
		list[i].Shift = shifts[d.Service.ID()]
	}
	return list
}
