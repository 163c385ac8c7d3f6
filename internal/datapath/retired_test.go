package datapath

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// forward makes a backend one that packets were forwarded to.
func forward(t *testing.T, d *Datapath, table *model.Table, backend int, packets, bytes, opened uint64) {
	t.Helper()
	index := d.services[keyOf(&table.Services[0])].order[backend].index
	perCPU := make([]uint64, ebpf.MustPossibleCPU())
	perCPU[len(perCPU)-1] = opened
	must(t, d.kernel.BackendCounters.Put(index, countOnce(t, packets, bytes)))
	must(t, d.kernel.BackendOpened.Put(index, perCPU))
}

// TestServiceCountsStay: what a service has counted never becomes less, whoever of its backends
// goes, and whether a process sees that or finds them gone. Prometheus would take it for a
// counter that began anew, and count everything again.
func TestServiceCountsStay(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	check := func(d *Datapath, when string, packets, bytes, opened uint64) {
		t.Helper()
		if s := statusOf(t, d).Services[0]; s.Packets != packets || s.Bytes != bytes || s.Opened != opened {
			t.Errorf("%s: %d packets, %d bytes, %d connections, want %d, %d, %d", when, s.Packets, s.Bytes, s.Opened, packets, bytes, opened)
		}
	}
	addNeighbors(t, 4)
	d := openTest(t, model.Limits{})
	four, three, two := tableOf(1, 4, 0), tableOf(1, 3, 0), tableOf(1, 2, 0)
	must(t, d.Set(four))
	forward(t, d, &four, 0, 1, 100, 1)
	forward(t, d, &four, 2, 20, 2000, 2)
	forward(t, d, &four, 3, 300, 30000, 3)
	check(d, "at first", 321, 32100, 6)
	must(t, d.Set(three))
	check(d, "one has gone", 321, 32100, 6)
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	must(t, d.Set(three))
	check(d, "after a restart", 321, 32100, 6)
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	must(t, d.Set(two))
	check(d, "one has gone with a restart", 321, 32100, 6)
	must(t, d.Set(four))
	check(d, "they are back", 321, 32100, 6)
	if b := statusOf(t, d).Services[0].Backends; b[0].Opened != 1 || b[2].Opened != 0 || b[2].Packets != 0 {
		t.Errorf("the backends have %+v", b)
	}
	must(t, d.Set(model.Table{Interfaces: four.Interfaces}))
	must(t, d.Set(two))
	check(d, "another service of the same address", 0, 0, 0)
}

// TestSegmentCountsStay: a segment counts what its services forward and drop, each its own, and goes on
// from there when a service goes.
func TestSegmentCountsStay(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	red := model.Segment{Kind: model.SegmentVLAN, ID: 7}
	d := openTest(t, model.Limits{})
	table := tableOf(2, 2, 0)
	table.Services[1].Segment, table.Services[1].VIP = red, table.Services[0].VIP
	must(t, d.Set(table))
	of := func(which int) *service { return d.services[keyOf(&table.Services[which])] }
	for i, packets := range []uint64{1, 20} {
		must(t, d.kernel.BackendCounters.Put(of(i).order[0].index, countOnce(t, packets, 100*packets)))
		must(t, writeTally(d.kernel.ServiceDrops, of(i).index, tally{packets: 3 * packets}))
	}
	check := func(when string, want ...model.SegmentCounts) {
		t.Helper()
		got := statusOf(t, d).Segments
		for i := range got {
			got[i].RingMemory = min(1, got[i].RingMemory) // there is some, or none
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	none := model.SegmentCounts{Services: 1, Backends: 2, RingMemory: 1, Packets: 1, Bytes: 100, Dropped: 3}
	check("at first", none, model.SegmentCounts{ID: red, Services: 1, Backends: 2, RingMemory: 1, Packets: 20, Bytes: 2000, Dropped: 60})
	must(t, d.Set(model.Table{Interfaces: table.Interfaces, Services: table.Services[:1]}))
	check("one has gone", none, model.SegmentCounts{ID: red, Packets: 20, Bytes: 2000, Dropped: 60})
	must(t, d.Set(table))
	check("it is back", none, model.SegmentCounts{ID: red, Services: 1, Backends: 2, RingMemory: 1, Packets: 20, Bytes: 2000, Dropped: 60})
}
