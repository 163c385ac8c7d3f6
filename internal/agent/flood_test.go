package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFlowsInUseOutliveAFlood: datagrams of clients that do not exist fill the memory many times
// over. Of the flows of before, those that go on meanwhile are remembered all the time, and those
// that pause are forgotten. Datagrams of flows that no host remembers stay where they arrive.
//
// All of it comes on one CPU, as what one RSS queue receives does: what a CPU put into the
// memory last waits in a list of that CPU (kernel/bpf/bpf_lru_list.c) and is safe there
// from what other CPUs remember, until the CPU itself needs room.
func TestFlowsInUseOutliveAFlood(t *testing.T) {
	stayOnOneCPU(t)
	h := newTestHost(t)
	o := outers()[0]
	send := func(f talk) {
		t.Helper()
		if verdict, _ := run(t, h.HostXdp, o.wrap(o.from, o.to, nil, f.datagram()), nil); verdict != xdpPass {
			t.Fatalf("the verdict about a datagram of %v is %d, want %d", f, verdict, xdpPass)
		}
		if h.remembered(f) == 0 {
			t.Fatalf("a datagram of %v was kept, and is not remembered", f)
		}
	}
	var inUse, idle []talk
	for i := range uint16(32) {
		inUse, idle = append(inUse, talk{vip: vip4, client: client4, port: 1000 + i}), append(idle, talk{vip: vip4, client: client4, port: 2000 + i})
		send(inUse[i])
		send(idle[i])
	}
	flood := uint32(16 * testFlows)
	if testing.Short() {
		flood = 4 * testFlows
	}
	for i := range flood {
		forged := binary.BigEndian.AppendUint32(nil, 0xcb007100+i)
		send(talk{vip: vip4, client: netip.AddrFrom4([4]byte(forged)), port: 53})
		if i%(testFlows/8) != 0 {
			continue
		}
		for _, f := range inUse {
			if h.remembered(f) == 0 {
				t.Fatalf("after %d datagrams of others %v is forgotten, though it goes on", i, f)
			}
			send(f)
		}
	}
	for _, f := range idle {
		if h.remembered(f) > 0 {
			t.Errorf("%v is remembered, where %d other flows came since, and there is room for %d", f, flood, testFlows)
		}
		send(f)
	}
}

// TestSustainedFlowsOutliveAFlood: datagrams of clients that do not exist, two of each, push out no
// flow that has gone on for a while before, of either family, also if it pauses meanwhile. Many
// datagrams at once are no such flow. See TestFlowsInUseOutliveAFlood for the one CPU.
func TestSustainedFlowsOutliveAFlood(t *testing.T) {
	stayOnOneCPU(t)
	h := newTestHost(t)
	o := outers()[0]
	send := func(f talk) {
		t.Helper()
		if verdict, _ := run(t, h.HostXdp, o.wrap(o.from, o.to, nil, f.datagram()), nil); verdict != xdpPass {
			t.Fatalf("the verdict about a datagram of %v is %d, want %d", f, verdict, xdpPass)
		}
	}
	var goOn []talk
	for i := range uint16(32) {
		goOn = append(goOn, talk{vip: vip4, client: client4, port: 1000 + i}, talk{vip: vip6, client: client6, port: 1000 + i})
	}
	for _, f := range goOn {
		waitFor(t, fmt.Sprintf("the flow of %v, port %d, to be sustained", f.client, f.port), func() bool {
			for _, f := range goOn {
				send(f)
			}
			return h.sustained(f) > 0
		})
	}
	burst := talk{vip: vip4, client: client4, port: 3000}
	for range 100 {
		send(burst)
	}
	if h.sustained(burst) > 0 {
		t.Error("a flow of which there were many datagrams at once is sustained")
	}
	prefix := client6.As16()
	for i := range uint32(4 * testFlows) {
		binary.BigEndian.PutUint32(prefix[12:], 0xcb007100+i)
		for _, forged := range []talk{{vip: vip4, client: netip.AddrFrom4([4]byte(prefix[12:])), port: 53}, {vip: vip6, client: netip.AddrFrom16(prefix), port: 53}} {
			send(forged)
			send(forged)
		}
	}
	for _, f := range goOn {
		if h.sustained(f) == 0 {
			t.Errorf("the flow of %v, port %d, has gone on for a while, and is forgotten after a flood", f.client, f.port)
		}
	}
}

// stayOnOneCPU keeps the test's goroutine on one CPU until it ends.
func stayOnOneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread keeps its one CPU
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatalf("stay on one CPU: %v", err)
	}
}
