package datapath

import (
	"iter"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
)

// testFlowBuckets is how many buckets flow memory has in packet tests.
const testFlowBuckets = 64

// testFormerBuckets is how many buckets each CPU has in packet tests in the table of versions before 0.2.
const testFormerBuckets = 16

// flowPlaces are all places of flow memory, as they are in the kernel.
func (d *testDirector) flowPlaces(t testing.TB) []abi.FlowPlace {
	t.Helper()
	if d.flowMemory.Entries == nil {
		m, err := bpfload.Map[abi.FlowPlace](d.Maps["flow_table"])
		if err != nil {
			t.Fatal(err)
		}
		d.flowMemory = m
	}
	return d.flowMemory.Entries
}

// flowsIn are the flows in some places, with the place where each begins.
func flowsIn(places []abi.FlowPlace) iter.Seq2[*abi.FlowPlace, abi.FlowEntry] {
	return func(yield func(*abi.FlowPlace, abi.FlowEntry) bool) {
		var e abi.FlowEntry
		for i := range places {
			if flows.ReadPlace(places[i&^1:][:2], i&1, &e) && !yield(&places[i], e) {
				return
			}
		}
	}
}

func (d *testDirector) forgetFlows(t testing.TB) {
	t.Helper()
	clear(d.flowPlaces(t))
}

// remembered are the places of the flows that are remembered of a service, by the client's port.
func (s *testService) remembered(t testing.TB, d *testDirector) map[uint16]*abi.FlowPlace {
	t.Helper()
	out := map[uint16]*abi.FlowPlace{}
	for place, e := range flowsIn(d.flowPlaces(t)) {
		if e.Service == s.index {
			port := be16(e.SourcePort)
			if out[port] != nil {
				t.Fatalf("the flow from port %d is remembered twice", port)
			}
			out[port] = place
		}
	}
	return out
}

// flowCount is how often something has happened to flow memory.
func (d *testDirector) flowCount(t testing.TB, event abi.FlowEvent) (sum uint64) {
	t.Helper()
	var perCPU []uint64
	if err := d.Maps["flow_events"].Lookup(uint32(event), &perCPU); err != nil {
		t.Fatalf("read flow events: %v", err)
	}
	for _, n := range perCPU {
		sum += n
	}
	return sum
}

// onCPU runs a function on one CPU, where the program then runs too.
func onCPU(t testing.TB, cpu int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatalf("move to CPU %d: %v", cpu, err)
	}
	defer unix.SchedSetaffinity(0, &before)
	f()
}
