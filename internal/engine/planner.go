package engine

import (
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// Planner plans as [Plan] does, and remembers the rings of its last plan: a ring
// costs milliseconds, and most changes change few. What it remembers changes no
// result. It is not for concurrent use.
type Planner struct {
	rings memory[digest, maglev.Generation]
	rows  memory[digest, rows]
}

// NewPlanner returns a planner that remembers nothing.
func NewPlanner() *Planner { return &Planner{} }

// Plan returns what [Plan] returns. Services with the same members share a ring,
// also with later plans: the table is to be read only.
func (p *Planner) Plan(desired model.Config, health Health) (model.Table, Report) {
	n := len(desired.Services)
	table := model.Table{
		Interfaces:   desired.Director.Interfaces,
		Directors:    desired.Directors,
		TunnelSource: desired.Director.TunnelSource,
		SNAT:         desired.Director.SNAT,
		ICMPRate:     desired.Director.ICMPRate,
		Services:     make([]model.TableService, n),
	}
	report := Report{Services: make([]ServiceReport, n)}
	memberships := make([]membership, n)
	inParallel(n, func(i int) {
		memberships[i] = newMembership(&desired.Services[i])
		table.Services[i] = tableService(&desired.Services[i], health)
	})
	rings := p.rings.recall(n,
		func(i int) digest { return memberships[i].ring },
		func(i int) maglev.Generation { return memberships[i].makeRing() })
	all := p.rows.recall(n,
		func(i int) digest { return memberships[i].rows },
		func(i int) rows { return memberships[i].makeRows(rings[memberships[i].ring]) })
	for i := range n {
		m, r := &memberships[i], all[memberships[i].rows]
		table.Services[i].Ring = r.ring
		report.Services[i] = ServiceReport{
			Name: table.Services[i].Name, Members: len(m.members), Slots: len(r.ring.Slots), Held: r.held,
		}
	}
	return table, report
}
