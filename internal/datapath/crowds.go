package datapath

import (
	"cmp"
	"time"

	"weir.io/weir/internal/crowd"
	"weir.io/weir/internal/model"
)

// crowds are the tables of flows without room, and the services with the most flows there.
type crowds struct {
	crowd.Watch[string] // by table
	found               map[string][]model.CrowdedService
}

// Crowded returns the services with the most flows for which a table of flows has just had no
// place, as in a flood.
func (d *Datapath) Crowded() []model.CrowdedService { return d.crowded(time.Now()) }

func (d *Datapath) crowded(now time.Time) (found []model.CrowdedService) {
	for _, table := range d.fullTables(now) {
		counts, err := d.countFlowsOf(table)
		if err != nil {
			continue // the status reports that error, too
		}
		d.mu.Lock()
		d.crowds.found[table] = d.most(table, counts)
		d.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for table := range d.crowds.Lasting(now) {
		found = append(found, d.crowds.found[table]...)
	}
	return crowd.Most(found)
}

// fullTables are the tables in which many flows have found no place since the last reading.
func (d *Datapath) fullTables(now time.Time) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.crowds.Due(now) || d.flows == nil || d.flows.entries == nil { // nil: the datapath is closed
		return nil
	}
	if d.crowds.found == nil {
		d.crowds.found = map[string][]model.CrowdedService{}
	}
	memory, err := d.kernel.counted(directorMapFlowEvents, uint32(directorFlowEventFLOW_REFUSED))
	nat, err2 := d.kernel.counted(directorMapReasons, uint32(directorReasonDROP_SNAT_FULL))
	if cmp.Or(err, err2) != nil {
		return nil // the status reports that error, too
	}
	return d.crowds.Take(map[string]uint64{model.FlowMemoryTable: memory.packets, model.NATTable: nat.packets}, now)
}

// countFlowsOf counts the flows of a table that a flood may have made, by service.
func (d *Datapath) countFlowsOf(table string) (map[uint32]uint32, error) {
	if table == model.NATTable {
		return d.countNATBy()
	}
	return d.countFlowsBy(func(e *directorFlowEntry) bool {
		return meaningOf(directorFlowState(e.State)).class == model.FreshFlow
	}), nil
}

// most names the services with the largest counts. The lock is held.
func (d *Datapath) most(table string, counts map[uint32]uint32) (found []model.CrowdedService) {
	for _, s := range d.services {
		if n := counts[s.index]; n > 0 {
			found = append(found, model.CrowdedService{Service: s.desired.Name, Table: table, Flows: n})
		}
	}
	return crowd.Most(found)
}

// countFlowsBy counts living flows, by service. A Set need not wait until it has counted all of
// them.
func (d *Datapath) countFlowsBy(counts func(*directorFlowEntry) bool) map[uint32]uint32 {
	found := map[uint32]uint32{}
	const atOnce = 1 << 16 // entries
	for first, more := 0, true; more; first += atOnce {
		more = d.countSome(first, first+atOnce, counts, found)
	}
	return found
}

func (d *Datapath) countSome(from, to int, counts func(*directorFlowEntry) bool, found map[uint32]uint32) (more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := flowClock()
	if err != nil || d.flows.entries == nil { // the datapath is closed
		return false
	}
	for i := from; i < min(to, len(d.flows.entries)); i++ {
		if e := &d.flows.entries[i]; counts(e) && d.entries.live(e, now) {
			found[e.Service]++
		}
	}
	return to < len(d.flows.entries)
}
