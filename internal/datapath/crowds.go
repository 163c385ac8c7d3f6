package datapath

import (
	"cmp"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

const (
	crowdsEvery = 2 * time.Second  // at most, the counters are read
	crowdsLast  = 10 * time.Second // a table counts as crowded for so long after a flow found no place
	// crowdsFrom is how many flows between two readings find no place before anybody is told: a
	// bucket may fill by chance where there is room.
	crowdsFrom  = 10
	crowdsNamed = 3 // services, those with the most
)

// crowds are the tables of flows without room, as they were read last.
type crowds struct {
	read   time.Time
	tables [2]crowdedTable // flow memory, full NAT's table
}

type crowdedTable struct {
	total uint64    // flows for which there was no place, ever
	since time.Time // when many of them came last; zero: never
	found []model.CrowdedService
}

// Crowded returns the services with the most flows for which a table of flows has had no place
// just now, as in a flood.
func (d *Datapath) Crowded() []model.CrowdedService {
	d.mu.Lock()
	if time.Since(d.crowds.read) < crowdsEvery {
		defer d.mu.Unlock()
		return d.crowds.list()
	}
	first, now := d.crowds.read.IsZero(), time.Now()
	d.crowds.read = now
	memory, nat := &d.crowds.tables[0], &d.crowds.tables[1]
	refused, full := d.refusedFlows()
	more := memory.grew(refused) && !first
	if more {
		memory.since = now
	}
	moreNAT := nat.grew(full) && !first
	if moreNAT {
		nat.since = now
	}
	d.mu.Unlock()
	if more {
		counts := d.countFlowsBy(func(e *directorFlowEntry) bool {
			return meaningOf(directorFlowState(e.State)).class == model.FreshFlow
		})
		d.mu.Lock()
		memory.found = d.most(model.FlowMemoryTable, counts)
		d.mu.Unlock()
	}
	if moreNAT {
		if counts, err := d.countNATBy(); err == nil { // what cannot be read now is so in the status, too
			d.mu.Lock()
			nat.found = d.most(model.NATTable, counts)
			d.mu.Unlock()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.crowds.list()
}

func (c *crowds) list() (found []model.CrowdedService) {
	for i := range c.tables {
		if !c.tables[i].over() {
			found = append(found, c.tables[i].found...)
		}
	}
	return found
}

func (t *crowdedTable) over() bool { return t.since.IsZero() || time.Since(t.since) > crowdsLast }

// grew takes a new total, and reports whether that is many more.
func (t *crowdedTable) grew(total uint64) bool {
	more := total >= t.total+crowdsFrom
	t.total = total
	return more
}

// refusedFlows are those for which flow memory and full NAT's table had no place. What cannot be
// read now is so in the status, too, which says why.
func (d *Datapath) refusedFlows() (memory, nat uint64) {
	if d.flows == nil || d.flows.entries == nil { // the datapath is closed
		return d.crowds.tables[0].total, d.crowds.tables[1].total
	}
	refused, err := d.kernel.counted(directorMapFlowEvents, uint32(directorFlowEventFLOW_REFUSED))
	full, err2 := d.kernel.counted(directorMapReasons, uint32(directorReasonDROP_SNAT_FULL))
	if err := cmp.Or(err, err2); err != nil {
		return d.crowds.tables[0].total, d.crowds.tables[1].total
	}
	return refused.packets, full.packets
}

// most names the services with the largest counts. The lock is held.
func (d *Datapath) most(table string, counts map[uint32]uint32) (found []model.CrowdedService) {
	for _, s := range d.services {
		if n := counts[s.index]; n > 0 {
			found = append(found, model.CrowdedService{Service: s.desired.Name, Table: table, Flows: n})
		}
	}
	slices.SortFunc(found, func(a, b model.CrowdedService) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Service, b.Service))
	})
	return found[:min(len(found), crowdsNamed)]
}

// countFlowsBy counts flows that live, by service. A Set need not wait for all of it.
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
