package desired

import (
	"context"
	"net/netip"
	"reflect"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Planned says what a put would change.
type Planned struct {
	Change
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
func (k *Keeper) Plan(ctx context.Context, owner string, services []model.Service, part float64) (Planned, error) {
	before, after, err := k.tryPut(ctx, owner, &proposal{services: services, part: part})
	if err != nil {
		return Planned{}, err
	}
	planned := Planned{Change: ChangeOf(before, after, owner), Group: k.group != nil}
	if set, had := before.Sets[owner]; had {
		planned.Base = set.Tag()
	}
	planned.Services = plannedOf(before.Sets[owner], after.Sets[owner])
	k.renew()
	now := time.Now()
	for i := range planned.Services {
		p := &planned.Services[i]
		p.Reported = func(netip.AddrPort) *model.ReportedService { return nil }
		if p.Before != nil {
			p.Reported = k.evidence.ReportsOf(&p.Before.Service, p.Shift.Before.Affinity, now)
		}
		if p.Before != nil && p.After != nil {
			planned.Moves = append(planned.Moves, model.Move{Service: p.Is.Name, Slots: p.Is.Slots, Moved: p.Moved(), Held: p.Is.Held})
		}
	}
	return planned, nil
}

// plannedOf returns the services that differ between two sets: those of the later set in its order,
// then those that only the earlier one has.
func plannedOf(before, after store.Set) []PlannedService {
	was := documentsOf(before)
	from, to := engine.Services{Logs: engine.Logs{}}, engine.Services{Logs: engine.Logs{}}
	var list []PlannedService
	note := func(old, next *store.Document) {
		if old != nil {
			from.List, from.Logs[old.Service.ID()] = append(from.List, old.Service), old.Log
		}
		if next != nil {
			to.List, to.Logs[next.Service.ID()] = append(to.List, next.Service), next.Log
		}
		list = append(list, PlannedService{Before: old, After: next})
	}
	for i := range after.Documents {
		d := &after.Documents[i]
		old := was[d.Service.ID()]
		delete(was, d.Service.ID())
		if old == nil || !reflect.DeepEqual(old.Service, d.Service) {
			note(old, d)
		}
	}
	for i := range before.Documents { // in order
		if d := &before.Documents[i]; was[d.Service.ID()] != nil {
			note(d, nil)
		}
	}
	shifts := map[model.ServiceID]engine.Shift{}
	for _, s := range engine.Shifts(from, to) {
		shifts[s.ID] = s
	}
	for i := range list {
		d := list[i].After
		if d == nil {
			d = list[i].Before
		}
		list[i].Shift = shifts[d.Service.ID()]
	}
	return list
}

func documentsOf(s store.Set) map[model.ServiceID]*store.Document {
	all := make(map[model.ServiceID]*store.Document, len(s.Documents))
	for i := range s.Documents {
		all[s.Documents[i].Service.ID()] = &s.Documents[i]
	}
	return all
}
