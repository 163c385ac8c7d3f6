package datapath

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
)

// testFlowBuckets is how many buckets of flow memory each CPU has in packet tests.
const testFlowBuckets = 64

// flowEntries are all entries of flow memory, as they are in the kernel.
func (d *testDirector) flowEntries(t testing.TB) []abi.FlowEntry {
	t.Helper()
	if d.flowMemory.Entries == nil {
		m, err := bpfload.Map[abi.FlowEntry](d.Maps["flows"])
		if err != nil {
			t.Fatal(err)
		}
		d.flowMemory = m
	}
	return d.flowMemory.Entries
}

func (d *testDirector) forgetFlows(t testing.TB) {
	t.Helper()
	clear(d.flowEntries(t))
}

// remembered are the flows that are remembered of a service, by the client's port.
func (s *testService) remembered(t testing.TB, d *testDirector) map[uint16]*abi.FlowEntry {
	t.Helper()
	out := map[uint16]*abi.FlowEntry{}
	entries := d.flowEntries(t)
	for i := range entries {
		if e := &entries[i]; e.State > uint8(abi.FlowStateFLOW_CLAIMED) && e.Service == s.index {
			port := be16(e.SourcePort)
			if out[port] != nil {
				t.Fatalf("the flow from port %d is remembered twice", port)
			}
			out[port] = e
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
