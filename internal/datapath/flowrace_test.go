package datapath

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// TestFlowOnTwoCPUs: the packets behind a SYN come on two CPUs at the same moment. Each
// of them may take the flow from the other, and neither may lose it.
func TestFlowOnTwoCPUs(t *testing.T) {
	if ebpf.MustPossibleCPU() < 2 {
		t.Fatal("needs two CPUs")
	}
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	const most = 100 // flows at a time: all have room
	for round := range 4000 {
		if round%most == 0 {
			d.forgetFlows(t)
		}
		port := clientPort + uint16(round%most)
		onCPU(t, 0, func() { s.want(t, d, port, synFlag, 0, "the flow begins") })
		var ready atomic.Int32
		var both sync.WaitGroup
		for cpu := range 2 {
			both.Go(func() {
				onCPU(t, cpu, func() {
					for ready.Add(1); ready.Load() < 2; { // at the same moment
					}
					s.want(t, d, port, ackFlag, 0, "it goes on")
				})
			})
		}
		both.Wait()
		onCPU(t, 1, func() { s.want(t, d, port, ackFlag, 0, "it has gone on") })
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}
