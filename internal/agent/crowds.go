package agent

import (
	"cmp"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

const (
	crowdsEvery = 2 * time.Second  // at most, the counters are read
	crowdsLast  = 10 * time.Second // a service counts as crowded for so long after a flow found no place
	// crowdsFrom is how many packets between two readings find no place before anybody is told: a
	// few may do so where a table has just filled.
	crowdsFrom  = 10
	crowdsNamed = 3 // services of each table, those with the most
)

// crowds are the services whose flows found no place within their quota, as they were read last.
type crowds struct {
	read   time.Time
	tables map[tableOf]crowd
}

// tableOf is a service in a table.
type tableOf struct{ service, table string }

type crowd struct {
	total uint64    // packets whose flow found no place, ever
	grew  uint64    // of these, those that came last
	since time.Time // when many of them came last; zero: never
}

// Crowded returns the services whose flows had no place just now, within their quota, in a table
// of the host.
func (a *Agent) Crowded() ([]model.CrowdedService, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if now.Sub(a.crowds.read) < crowdsEvery || a.closed {
		return a.crowds.list(now), nil
	}
	totals := map[tableOf]uint64{}
	for _, s := range a.plan.services {
		if s.protocol != model.UDP && len(s.pods) == 0 {
			continue
		}
		c, err := readCounter(a.objects.ServiceNoPlace, a.tables.indexes[s.identity()])
		if err != nil {
			return nil, err
		}
		totals[tableOf{s.name, s.table()}] += c.Packets
	}
	if a.redirector != nil {
		if err := a.redirector.refused(totals); err != nil {
			return nil, err
		}
	}
	a.crowds.take(totals, now)
	return a.crowds.list(now), nil
}

// table is where flows of a service stay on this host.
func (s *service) table() string {
	if len(s.pods) > 0 {
		return model.PodsTable
	}
	return model.UDPFlowsTable
}

// refused adds the connections of each service for which there was no place.
func (r *redirector) refused(totals map[tableOf]uint64) error {
	for _, s := range r.list {
		for _, event := range []redirectRedirectEvent{redirectRedirectEventREDIRECT_QUOTA, redirectRedirectEventREDIRECT_FULL} {
			n, err := r.counted(r.indexes[s.vip], event)
			if err != nil {
				return err
			}
			totals[tableOf{s.name, model.RedirectTable}] += n
		}
	}
	return nil
}

// take takes new totals. What is counted at the first reading is of before.
func (c *crowds) take(totals map[tableOf]uint64, now time.Time) {
	before, first := c.tables, c.read.IsZero()
	c.read, c.tables = now, make(map[tableOf]crowd, len(totals))
	for of, total := range totals {
		is := before[of]
		if grew := since(total, is.total); grew >= crowdsFrom && !first {
			is.grew, is.since = grew, now
		}
		is.total = total
		c.tables[of] = is
	}
}

// list returns those of the last seconds, of each table those with the most.
func (c *crowds) list(now time.Time) (found []model.CrowdedService) {
	for of, is := range c.tables {
		if !is.since.IsZero() && now.Sub(is.since) <= crowdsLast {
			found = append(found, model.CrowdedService{Service: of.service, Table: of.table, Flows: uint32(is.grew)})
		}
	}
	slices.SortFunc(found, func(a, b model.CrowdedService) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Service, b.Service))
	})
	named := map[string]int{}
	return slices.DeleteFunc(found, func(s model.CrowdedService) bool {
		named[s.Table]++
		return named[s.Table] > crowdsNamed
	})
}
