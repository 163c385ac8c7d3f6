package engine

import (
	"time"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// Planner plans as [Plan] does, and remembers the rings and backends of its last plan: a
// ring costs milliseconds, and most changes change few. What it remembers changes no
// result. It is not for concurrent use.
type Planner struct {
	rings    memory[digest, maglev.Generation]
	rows     memory[digest, rows]
	services []model.TableService
}

// NewPlanner returns a planner that remembers nothing.
func NewPlanner() *Planner { return &Planner{} }

// Plan returns what [Plan] returns. Services with the same members share a ring, also with
// later plans, and so do backends that stay as they are: the table is to be read only.
func (p *Planner) Plan(desired model.Config, logs Logs, health Health) (model.Table, Report) {
	n := len(desired.Services)
	table := model.Table{
		Interfaces:   desired.Director.Interfaces,
		Directors:    desired.Directors,
		TunnelSource: desired.Director.TunnelSource,
		SNAT:         desired.Director.SNAT,
		ICMPRate:     desired.Director.ICMPRate,
		Suspect:      time.Duration(desired.Suspect),
		Group:        desired.Director.Group,
		Services:     make([]model.TableService, n),
	}
	report := Report{Services: make([]ServiceReport, n)}
	all := make([]memberships, n)
	inParallel(n, func(i int) {
		s := &desired.Services[i]
		log := logs[s.ID()]
		if len(log.Generations) == 0 {
			log = history.Advance(log, s, time.Time{})
		}
		all[i] = newMemberships(s, log)
		of := newServiceHealth(s, health)
		table.Services[i] = tableService(s, log, &of, p.backendsBefore(i, s))
		report.Services[i] = newServiceReport(s, log)
		report.Services[i].Health, report.Services[i].Up = of.report(), of.isUp()
	})
	p.services = table.Services
	made := p.makeRows(all)
	for i := range n {
		r := made[all[i].now.rows]
		t := &table.Services[i]
		t.Affinity, t.Ring = all[i].affinity, r.ring
		report.Services[i].noteRows(&r)
		if before := all[i].before; before != nil {
			t.Before = &model.RingBefore{Affinity: before.log[0].Affinity, Ring: made[before.rows].ring}
			report.Services[i].Shared = report.Services[i].Slots
		}
	}
	return table, report
}

// backendsBefore are those that a service had in the last plan, if it was at the same place
// of it: most are.
func (p *Planner) backendsBefore(i int, s *model.Service) []model.TableBackend {
	if i < len(p.services) && p.services[i].Name == s.Name {
		return p.services[i].Backends
	}
	return nil
}

// makeRows makes the rows of each service, and the rings that they need.
func (p *Planner) makeRows(all []memberships) map[digest]rows {
	var memberships []*membership
	for i := range all {
		memberships = append(memberships, &all[i].now)
		if all[i].before != nil {
			memberships = append(memberships, all[i].before)
		}
	}
	type generation struct{ service, number int }
	var generations []generation
	for i := range memberships {
		for j := range memberships[i].log {
			generations = append(generations, generation{i, j})
		}
	}
	rings := p.rings.recall(len(generations),
		func(i int) digest { g := generations[i]; return memberships[g.service].log[g.number].ring },
		func(i int) maglev.Generation {
			g := generations[i]
			return makeRing(&memberships[g.service].log[g.number].Generation)
		})
	return p.rows.recall(len(memberships),
		func(i int) digest { return memberships[i].rows },
		func(i int) rows { return memberships[i].makeRows(rings) })
}
