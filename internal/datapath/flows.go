package datapath

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/crowd"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// layFlows says where flows are looked for: by the salt that the process before this one has
// chosen, if its table is here.
func (d *Datapath) layFlows() error {
	cpus, err := flows.OnlineCPUs()
	if err != nil {
		return err
	}
	before, record := d.written, &d.kernel.records.director.Entries[0]
	d.written.Cpus, d.written.FlowBuckets = cpus, d.kernel.FlowTable.MaxEntries()
	d.written.FormerCpus, d.written.FormerBuckets = 0, 0
	if d.kernel.formerTable.in {
		d.written.FormerCpus, d.written.FormerBuckets = record.formerCPUs, record.formerBuckets
	}
	if !d.kernel.adopted {
		d.written.FlowSalt = record.flowSalt
	}
	if d.written.FlowSalt == 0 {
		d.written.FlowSalt = rand.Uint64()
	}
	if d.kernel.formerTable.stale {
		clear(d.flows.Bytes)
	}
	if d.written == before {
		return nil
	}
	if err := d.kernel.ThisDirector.Put(uint32(0), d.written); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// noteFlowLayout lets another version find what is remembered.
func (d *Datapath) noteFlowLayout() {
	record := &d.kernel.records.director.Entries[0]
	record.flowSalt = d.written.FlowSalt
	record.formerCPUs, record.formerBuckets = d.written.FormerCpus, d.written.FormerBuckets
}

// flowCounts are how many flows are remembered.
type flowCounts struct {
	remembered, fresh int
	of                []uint32       // by service index
	reset             map[uint32]int // those that clients have reset, by service index
}

// countFlows counts the remembered flows.
func (d *Datapath) countFlows(now uint32) flowCounts {
	c := flowCounts{of: make([]uint32, d.options.Limits.Services), reset: map[uint32]int{}}
	for e := range d.flows.All() {
		if !flows.Live(d.entries.Entries, e, now) {
			continue
		}
		c.remembered++
		if int(e.Service) < len(c.of) {
			c.of[e.Service]++
		}
		if flows.MeaningOf(abi.FlowState(e.State)).Class == model.FreshFlow {
			c.fresh++
		}
		if e.State == uint8(abi.FlowStateFLOW_RESET) || e.State == uint8(abi.FlowStateFLOW_CUT) {
			c.reset[e.Service]++
		}
	}
	return c
}

// flowStatus says what is remembered.
func (d *Datapath) flowStatus() (status model.FlowStatus, counts flowCounts, err error) {
	now, err := flows.Clock()
	if err != nil {
		return status, counts, err
	}
	counts = d.countFlows(now)
	status.Remembered, status.Fresh = counts.remembered, counts.fresh
	for _, s := range d.services {
		status.Settling += s.settling
	}
	if status.Events, err = d.kernel.events(directorMapFlowEvents, d.kernel.flowEvents); err != nil {
		return status, counts, fmt.Errorf("read flow events: %w", err)
	}
	status.Imported = d.imports.tallies(d.kernel.importOutcomes)
	return status, counts, nil
}

// resetsEvery is how often the table is read for the resets of fresh flows, while directors of
// the group ask for them.
const resetsEvery = 5 * time.Second

// resets are the resets of fresh flows. Directors share only how many there were.
type resets struct {
	own   []model.ServiceResets
	read  time.Time
	heard map[netip.Addr]map[serviceKey]uint32 // by director
}

// heardOf is how many resets other directors say that they have seen of a service, in the order of
// the directors.
func (r *resets) heardOf(key serviceKey) (imported []model.ResetsTold) {
	for director, counts := range r.heard {
		if n := counts[key]; n > 0 {
			imported = append(imported, model.ResetsTold{Director: director, Flows: n})
		}
	}
	slices.SortFunc(imported, func(a, b model.ResetsTold) int { return a.Director.Compare(b.Director) })
	return imported
}

// FreshResets returns how many fresh flows were reset in the last minute, for services that had
// any.
func (d *Datapath) FreshResets() []model.ServiceResets {
	d.mu.Lock()
	own, late := d.resets.own, time.Since(d.resets.read) >= resetsEvery
	if late {
		d.resets.read = time.Now() // calls meanwhile get the counts that were there
	}
	d.mu.Unlock()
	if !late {
		return own
	}
	counts := d.countFlowsBy(func(e *abi.FlowEntry) bool { return e.State == uint8(abi.FlowStateFLOW_CUT) })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resets.own = nil
	for _, s := range d.services {
		if n := counts[s.index]; n > 0 {
			d.resets.own = append(d.resets.own, model.ServiceResets{Service: s.key.id(), Flows: n})
		}
	}
	return d.resets.own
}

// HearResets takes the counts of another director of the group, in place of its counts before.
func (d *Datapath) HearResets(director netip.Addr, list []model.ServiceResets) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.resets.heard == nil {
		d.resets.heard = map[netip.Addr]map[serviceKey]uint32{}
	}
	delete(d.resets.heard, director)
	if len(list) == 0 {
		return
	}
	counts := make(map[serviceKey]uint32, len(list))
	for _, r := range list {
		counts[keyOfID(r.Service)] = r.Flows
	}
	d.resets.heard[director] = counts
}

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
	if !d.crowds.Due(now) || d.closed() {
		return nil
	}
	if d.crowds.found == nil {
		d.crowds.found = map[string][]model.CrowdedService{}
	}
	memory, err := d.kernel.counted(directorMapFlowEvents, uint32(abi.FlowEventFLOW_REFUSED))
	nat, err2 := d.kernel.counted(directorMapReasons, uint32(abi.ReasonDROP_SNAT_FULL))
	if cmp.Or(err, err2) != nil {
		return nil // the status reports that error, too
	}
	return d.crowds.Take(map[string]uint64{model.FlowMemoryTable: memory.packets, model.NATTable: nat.packets}, now)
}

// countFlowsOf counts the flows of a table by service: the fresh ones, which a flood may have made, or
// all if none is fresh.
func (d *Datapath) countFlowsOf(table string) (map[uint32]uint32, error) {
	if table == model.NATTable {
		return d.countNATBy()
	}
	counts := d.countFlowsBy(func(e *abi.FlowEntry) bool {
		return flows.MeaningOf(abi.FlowState(e.State)).Class == model.FreshFlow
	})
	if len(counts) == 0 {
		counts = d.countFlowsBy(func(*abi.FlowEntry) bool { return true })
	}
	return counts, nil
}

// most names the services with the largest counts. The lock is held.
func (d *Datapath) most(table string, counts map[uint32]uint32) (found []model.CrowdedService) {
	for _, s := range d.services {
		if n := counts[s.index]; n > 0 {
			found = append(found, model.CrowdedService{Service: s.desired.Name, Segment: s.desired.Segment, Table: table, Flows: n})
		}
	}
	return crowd.Most(found)
}

// countFlowsBy counts living flows, by service. A Set need not wait until it has counted all of
// them.
func (d *Datapath) countFlowsBy(counts func(*abi.FlowEntry) bool) map[uint32]uint32 {
	found := map[uint32]uint32{}
	const atOnce = 1 << 16 // entries
	for first, more := 0, true; more; first += atOnce {
		more = d.countSome(first, first+atOnce, counts, found)
	}
	return found
}

func (d *Datapath) countSome(from, to int, counts func(*abi.FlowEntry) bool, found map[uint32]uint32) (more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := flows.Clock()
	if err != nil || d.flows.Entries == nil { // the datapath is closed
		return false
	}
	for e := range d.flows.Flows(from, to) {
		if counts(e) && flows.Live(d.entries.Entries, e, now) {
			found[e.Service]++
		}
	}
	return to < len(d.flows.Entries)
}

// A connection that no director remembers is taken to be that of its slot's oldest owner. If it
// goes on, that was right, and the program notes the time (bpf/director/pick/inferred_owner.h): the service's log should
// go on naming that owner, because there may be more such connections.

// guesses has the last such time of each service, by its index, in the clock of flow memory; 0:
// there was none.
type guesses struct{ bpfload.Memory[uint64] }

// forget clears the time of an index that a service is about to get.
func (g *guesses) forget(service uint32) { atomic.StoreUint64(&g.Entries[service], 0) }

// note does what the program does, for a time that may be in the past.
func (g *guesses) note(service, seen uint32) {
	if uint64(seen) > atomic.LoadUint64(&g.Entries[service]) {
		atomic.StoreUint64(&g.Entries[service], uint64(seen))
	}
}

// LastGuess returns when this director last learned, from packets or from another director, that
// an older owner of a TCP service's slot has a living connection of which no director of the
// group had seen a packet since the slot had several candidates. The time is never before the
// moment at which this process began to look, because what happened before that is unknown.
func (d *Datapath) LastGuess(id model.ServiceID) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.services[keyOfID(id)]
	if s == nil || d.guesses.Entries == nil {
		return d.opened
	}
	last := atomic.LoadUint64(&d.guesses.Entries[s.index])
	clock, err := flows.Monotonic()
	if last == 0 || err != nil {
		return d.opened
	}
	// When the time was noted, its unit may have just begun or been about to end.
	now, age := time.Now(), clock-time.Duration(last+1)<<30
	if at := now.Add(-max(0, age)); at.After(d.opened) {
		return at
	}
	return d.opened
}

// isOfOlder says whether a remembered flow is of a backend that its slot names only because of
// older generations: neither the owner nor its backup.
func (d *Datapath) isOfOlder(s *service, slot abi.Slot, backend uint32) bool {
	image := d.rings.bytes(s.ring)
	_, header := ringSlots(image)
	if slot.Next&abi.SlotList == 0 && header.Before == 0 || s.desired.AmongAll() {
		return false // no older backend is named, or any backend may have been chosen just now
	}
	if state := d.entries.Entries[slot.Owner].State; aliveIn(state) || state == uint8(abi.BackendStateBACKEND_SUSPECT) {
		return backend != slot.Owner
	}
	others := []uint32{slot.Next &^ abi.SlotSettling}
	if slot.Next&abi.SlotList != 0 {
		list := (*abi.Candidates)(unsafe.Pointer(&image[int(slot.Next&^abi.SlotList)*abi.LineSize]))
		others = list.Index[:min(int(list.Count), len(list.Index))]
	}
	for _, other := range others {
		if d.entries.alive(other) {
			return backend != other
		}
	}
	return true
}
