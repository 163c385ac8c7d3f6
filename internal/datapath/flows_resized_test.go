package datapath

import (
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Flow memory of another size has the flows of the one before, and those of a process that was killed;
// those that began after the first copy, too.
func TestFlowsOutliveAnotherSize(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 4)
	onCPU(t, 0, func() {
		const connections = 200
		d := openTest(t, model.Limits{Flows: 4096})
		must(t, d.Set(tableOf(1, 3, 0)))
		must(t, d.Set(tableOf(1, 3, 1))) // its slots settle
		backends := map[uint16]any{}
		for port := range uint16(connections) {
			backends[port] = d.sendsFrom(t, clientPort+port, packet.SYN)
			d.sendsFrom(t, clientPort+port, packet.ACK)
		}
		for i, size := range []uint32{8192, 2048, 16384} {
			if i == 1 {
				kill(t, d)
			} else {
				must(t, d.Close())
			}
			d = openTest(t, model.Limits{Flows: size})
			must(t, d.Set(tableOf(1, 3, i%2)))
			moved := 0
			for port := range uint16(connections) {
				if d.sendsFrom(t, clientPort+port, packet.ACK) != backends[port] {
					moved++
				}
			}
			if moved > 0 {
				t.Errorf("%d of %d connections have gone to other backends with memory for %d flows", moved, connections, size)
			}
		}
	})
}
