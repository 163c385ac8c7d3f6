package engine

import (
	"slices"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// Planner plans as [Plan] does, and remembers the rings, memberships and backends of its last
// plan: a ring costs milliseconds, and most changes change few. What it remembers changes no
// result. It is not for concurrent use.
type Planner struct {
	rings    ringMemory
	rows     memory[digest, rows]
	services []model.TableService
	known    []known // by the place in the plan
}

// NewPlanner returns a planner that remembers nothing.
func NewPlanner() *Planner { return &Planner{} }

// Plan returns what [Plan] returns. Services with the same members share a ring, also with later
// plans, as do unchanged backends: the table is read only.
func (p *Planner) Plan(desired model.Config, logs Logs, health Health) (model.Table, Report) {
	n := len(desired.Services)
	table := model.Table{
		Interfaces:      desired.Director.Interfaces,
		ReplyInterfaces: desired.Director.ReplyInterfaces,
		Directors:       desired.Directors,
		TunnelSource:    desired.Director.TunnelSource,
		SNAT:            desired.Director.SNAT,
		ICMPRate:        desired.Director.ICMPRate,
		Suspect:         time.Duration(desired.Suspect),
		Group:           desired.Director.Group,

		KernelSources: desired.Director.KernelSources,
		VTEP:          desired.Director.VTEP,
		Segments:      desired.Segments,
		Quotas:        desired.Quotas(),
		Services:      make([]model.TableService, n),
	}
	report := Report{Services: make([]ServiceReport, n)}
	p.known = resized(p.known, n)
	links := desired.SegmentInterfaces()
	inParallel(n, func(i int) {
		s := &desired.Services[i]
		k := &p.known[i]
		k.learn(s, logs[s.ID()])
		of := newServiceHealth(s, health)
		table.Services[i] = tableService(s, k.log, &of, p.before(i, s), links)
		_, table.Services[i].Quota = table.Quotas[s.Segment]
		report.Services[i] = k.reportOf(s)
		report.Services[i].Health, report.Services[i].Up = of.report(), of.isUp()
		report.Services[i].Tier, report.Services[i].Tiers = of.tier, table.Services[i].TierHealth
	})
	p.services = table.Services
	made := p.makeRows()
	for i := range n {
		p.setRings(&table.Services[i], &report.Services[i], p.known[i].tiers, made)
	}
	return table, report
}

// setRings gives a service the rings of its tiers, and lets it use that of the tier that its health asks for.
func (p *Planner) setRings(t *model.TableService, report *ServiceReport, tiers []memberships, made map[digest]rows) {
	rings := make([]model.TierRing, len(tiers))
	for k := range tiers {
		all := &tiers[k]
		rings[k] = model.TierRing{Affinity: all.affinity, Ring: made[all.now.rows].ring}
		if before := all.before; before != nil {
			rings[k].Before = &model.RingBefore{Affinity: before.log[0].Affinity, Ring: made[before.rows].ring}
		}
	}
	used := int(report.Tier)
	if used >= len(rings) || len(rings[used].Ring.Slots) == 0 { // all of its members drain
		used = max(0, slices.IndexFunc(rings, func(r model.TierRing) bool { return len(r.Ring.Slots) > 0 }))
	}
	t.Tiers = rings
	t.Use(uint8(used))
	if len(rings) == 1 {
		t.Tiers = nil
	}
	if report.Tier = t.Tier; t.TierHealth != nil {
		t.TierHealth.Active = t.Tier
	}
	r := made[tiers[used].now.rows]
	report.noteRows(&r)
	for k := range tiers {
		for _, number := range made[tiers[k].now.rows].heldAt { // another director may use this tier
			if !slices.Contains(report.HeldAt, number) {
				report.HeldAt = append(slices.Clone(report.HeldAt), number)
			}
		}
	}
	if t.Before != nil {
		report.Shared = report.Slots
	}
}

// resized returns the slice with that many elements, the first of which are unchanged.
func resized[T any](s []T, n int) []T {
	if n <= len(s) {
		clear(s[n:])
		return s[:n]
	}
	return append(s, make([]T, n-len(s))...)
}

// before is the service as it was in the last plan, if it was at the same place: most are. Else it
// is nil.
func (p *Planner) before(i int, s *model.Service) *model.TableService {
	if i < len(p.services) && p.services[i].Name == s.Name {
		return &p.services[i]
	}
	return &model.TableService{}
}

// makeRows makes the rows of each service, and the rings that they need.
func (p *Planner) makeRows() map[digest]rows {
	memberships := make([]*membership, 0, len(p.known))
	for i := range p.known {
		for k := range p.known[i].tiers {
			all := &p.known[i].tiers[k]
			memberships = append(memberships, &all.now)
			if all.before != nil {
				memberships = append(memberships, all.before)
			}
		}
	}
	made := p.rows.recall(len(memberships),
		func(i int) digest { return memberships[i].rows },
		func(i int) rows { return memberships[i].makeRows(p.rings.of) })
	p.rings.keep(memberships)
	return made
}

// fewestToHold is the fewest generations of a log with which a row can be too long: the newest
// names two candidates, and each older one two more if sizes differ or policies place connections
// on backups, or four more if both. Of several tiers, each may have room for two candidates.
func fewestToHold(log *model.Log) int {
	if slices.ContainsFunc(log.Generations, func(g model.Generation) bool { return g.Tiers() > 1 }) {
		return 2
	}
	return 3
}

// HeldAt returns the generations that hold slots of services by their logs, whichever director
// forwards by them.
func HeldAt(services []model.Service, logs Logs) map[model.ServiceID]history.Held {
	return NewPlanner().HeldAt(services, logs)
}

// HeldAt does so with the rings that the planner made last.
func (p *Planner) HeldAt(services []model.Service, logs Logs) map[model.ServiceID]history.Held {
	var long []model.Service
	for i := range services {
		if log := logs[services[i].ID()]; len(log.Generations) >= fewestToHold(&log) || log.Coming > 0 {
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
