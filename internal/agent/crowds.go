package agent

import (
	"time"

	"weir.io/weir/internal/crowd"
	"weir.io/weir/internal/model"
)

// crowds are the services with flows that found no place within their quota.
type crowds struct{ crowd.Watch[tableOf] }

// tableOf is a service in a table.
type tableOf struct{ service, table string }

// Crowded returns the services whose flows have just found no place, within their quota, in a table
// of the host.
func (a *Agent) Crowded() ([]model.CrowdedService, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.crowds.Due(now) && !a.closed {
		totals, err := a.refusedFlows()
		if err != nil {
			return nil, err
		}
		a.crowds.Take(totals, now)
	}
	return a.crowds.list(now), nil
}

// refusedFlows counts all packets so far of each service whose flow found no place. The lock is
// held.
func (a *Agent) refusedFlows() (map[tableOf]uint64, error) {
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
	if a.redirector == nil {
		return totals, nil
	}
	return totals, a.redirector.refused(totals)
}

// table is the table in which flows of a service are kept on this host.
func (s *service) table() string {
	if len(s.pods) > 0 {
		return model.PodsTable
	}
	return model.UDPFlowsTable
}

// refused adds the number of connections of each service for which there was no place.
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

// list returns the services that crowd their tables now.
func (c *crowds) list(now time.Time) (found []model.CrowdedService) {
	for of, grew := range c.Lasting(now) {
		found = append(found, model.CrowdedService{Service: of.service, Table: of.table, Flows: uint32(grew)})
	}
	return crowd.Most(found)
}
