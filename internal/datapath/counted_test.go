package datapath

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// Flows that clients have reset are counted for their services, as long as they are remembered.
func TestResetFlowsAreCounted(t *testing.T) {
	const now = 100_000
	late := flows.Timeout(abi.FlowStateFLOW_RESET) + 1
	flow := func(service uint32, state abi.FlowState, age uint32) abi.FlowPlace {
		return abi.FlowPlace{Service: service, State: uint8(state), Seen: now - age}
	}
	d := Datapath{flows: flows.Memory{Memory: bpfload.Memory[abi.FlowPlace]{Entries: []abi.FlowPlace{
		flow(3, abi.FlowStateFLOW_RESET, 0), flow(3, abi.FlowStateFLOW_RESET, 10), flow(3, abi.FlowStateFLOW_RESET, late),
		flow(4, abi.FlowStateFLOW_RESET, 1), flow(4, abi.FlowStateFLOW_ESTABLISHED, 1), flow(5, abi.FlowStateFLOW_CLOSING, 1), {}, {State: uint8(abi.FlowStateFLOW_REST), Service: 5},
	}}}}
	d.entries.Entries = []abi.Backend{{State: uint8(abi.BackendStateBACKEND_ACTIVE)}}
	counts := d.countFlows(now)
	remembered, reset := counts.remembered, counts.reset
	if remembered != 5 || !maps.Equal(reset, map[uint32]int{3: 2, 4: 1}) {
		t.Errorf("%d flows are remembered, of them reset %v; want 5, of services 3 and 4 two and one", remembered, reset)
	}
}

// The rate is made from the packets between two counts, of backends that are in both.
func TestCountedSince(t *testing.T) {
	id := model.ServiceID{VIP: netip.MustParseAddr("203.0.113.1"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}}
	at := time.Now()
	of := func(port uint16) model.Target {
		return model.Target{Service: id, Backend: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port)}
	}
	before := Counted{at, map[model.Target]tally{of(1): {packets: 10, bytes: 1000, opened: 1}, of(2): {packets: 500}, of(3): {packets: 7}}}
	after := Counted{at.Add(2 * time.Second), map[model.Target]tally{of(1): {packets: 30, bytes: 5000, opened: 2}, of(2): {packets: 5}, of(4): {packets: 9}}}
	want := map[netip.AddrPort]model.Rate{of(1).Backend: {Connections: 0.5, Packets: 10, Bytes: 2000}}
	if got := after.Since(before)[id]; !maps.Equal(got, want) {
		t.Errorf("counted are %v, want %v: the others have not both counts, or began anew", got, want)
	}
}
