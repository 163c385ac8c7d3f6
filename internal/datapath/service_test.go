package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// to is a packet of the scenario's service to one port.
func (s scenario) to(port uint16) ([]packet.Header, model.Flow) {
	f := s.flow()
	f.DestinationPort = port
	return []packet.Header{ip(s.client, s.vip), l4(s.protocol, clientPort, port)}, f
}

// One port is before a range, a small range before a large one, and any range
// before all ports; protocols do not mix.
func testPortRanges(t *testing.T) {
	w := &testWorld{}
	var rows []row
	for _, is4 := range []bool{true, false} {
		vip := vipAddress(is4, 1)
		add := func(vip int, protocol model.Protocol, ports model.PortRange) scenario {
			return scenario{client: clientOf(is4), testService: w.add(testService{vip: vipAddress(is4, vip), protocol: protocol, port: ports,
				backends: []testBackend{{address: vipAddress(is4, vip)}}})}
		}
		one, some, all := add(1, model.TCP, singlePort(8050)), add(1, model.TCP, model.PortRange{First: 8001, Last: 8100}), add(1, model.TCP, model.PortRange{})
		alone := add(2, model.UDP, model.PortRange{First: 5000, Last: 5000})
		edge := add(3, model.UDP, model.PortRange{First: 1, Last: 65535})
		for _, at := range []struct {
			scenario
			ports []uint16
		}{
			{one, []uint16{8050}},
			{some, []uint16{8001, 8002, 8049, 8051, 8063, 8064, 8096, 8099, 8100}},
			{all, []uint16{1, 80, 8000, 8101, 65535}},
			{alone, []uint16{5000}},
			{edge, []uint16{1, 2, 32767, 32768, 65535}},
		} {
			for _, port := range at.ports {
				headers, f := at.to(port)
				rows = append(rows, at.forward(fmt.Sprintf("%v port %d", vip, port), f, 0, headers...))
			}
		}
		for _, port := range []uint16{4999, 5001} {
			headers, _ := alone.to(port)
			rows = append(rows, alone.pass("beside the range", headers...))
		}
		zero, _ := edge.to(0)
		udp := one
		udp.testService = &testService{vip: vip, protocol: model.UDP}
		other, _ := udp.to(8050)
		rows = append(rows, edge.pass("port 0", zero...), one.pass("other protocol", other...))
	}
	loadTestDirector(t, w).check(t, rows)
}

// candidateList is a list whose backends owned the slot before those in front of them.
func candidateList(next ...uint32) model.CandidateList {
	list := model.CandidateList{Next: next}
	for position := len(next); position >= 0; position-- {
		list.Oldest = append(list.Oldest, uint8(position))
	}
	return list
}

// A slot whose owner is down belongs to the next live candidate of its row.
func testDeadBackends(t *testing.T) {
	const active, draining, down, free = abi.BackendStateBACKEND_ACTIVE, abi.BackendStateBACKEND_DRAINING,
		abi.BackendStateBACKEND_DOWN, abi.BackendStateBACKEND_FREE
	pair := model.Ring{Slots: []model.Slot{{Owner: 0, Next: 1}}}
	list := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.ListFlag}}, Lists: []model.CandidateList{candidateList(1, 2, 3, 4, 5, 6, 7)}}
	second := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.ListFlag | 1}}, Lists: []model.CandidateList{candidateList(3), candidateList(2, 1)}}
	lone := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.NoBackend}}}
	nobodys := model.Ring{Slots: []model.Slot{{Owner: model.NoBackend, Next: model.NoBackend}}}
	w := &testWorld{}
	var rows []row
	for _, c := range []struct {
		name   string
		ring   model.Ring
		states []abi.BackendState
		want   int // -1: dropped
	}{
		{"owner is alive", pair, []abi.BackendState{active, active}, 0},
		{"owner drains", pair, []abi.BackendState{draining, active}, 0},
		{"owner is down", pair, []abi.BackendState{down, active}, 1},
		{"owner is gone", pair, []abi.BackendState{free, active}, 1},
		{"owner is down, backup drains", pair, []abi.BackendState{down, draining}, 1},
		{"both are down", pair, []abi.BackendState{down, down}, -1},
		{"no backup", lone, []abi.BackendState{down}, -1},
		{"nobody's slot", nobodys, []abi.BackendState{active}, -1},
		{"list: owner is alive", list, []abi.BackendState{active, active, active, active, active, active, active, active}, 0},
		{"list: first", list, []abi.BackendState{down, active, active, active, active, active, active, active}, 1},
		{"list: third", list, []abi.BackendState{down, down, down, active, active, active, active, active}, 3},
		{"list: last", list, []abi.BackendState{down, down, down, down, down, free, down, active}, 7},
		{"list: none", list, []abi.BackendState{down, down, down, down, down, down, down, down}, -1},
		{"second list", second, []abi.BackendState{down, active, active, active}, 2},
		{"second list: its last", second, []abi.BackendState{down, active, down, active}, 1},
		{"second list: none", second, []abi.BackendState{down, down, down, active}, -1},
	} {
		for _, is4 := range []bool{true, false} {
			rows = append(rows, w.deadRow(fmt.Sprintf("%s, %v", c.name, is4), is4, c.ring, c.states, c.want))
		}
	}
	empty := scenario{client: client4, testService: w.add(testService{vip: vipAddress(true, len(w.services)), protocol: model.TCP, port: singlePort(servicePort), noRing: true})}
	rows = append(rows, row{name: "no backends", in: build(empty.data(5)...)}.dropped(abi.ReasonDROP_NO_BACKEND, empty.testService))
	d := loadTestDirector(t, w)
	d.check(t, rows)
}

func (w *testWorld) deadRow(name string, is4 bool, ring model.Ring, states []abi.BackendState, want int) row {
	backends := make([]testBackend, len(states))
	for i, state := range states {
		backends[i] = testBackend{mode: model.IPIP, address: backendAddress(is4, i+1), state: state, gone: state == abi.BackendStateBACKEND_FREE}
	}
	s := scenario{client: clientOf(is4), testService: w.add(testService{vip: vipAddress(is4, len(w.services)), protocol: model.TCP,
		port: singlePort(servicePort), ring: ring, backends: backends})}
	if want < 0 {
		return row{name: name, in: build(s.data(5)...)}.dropped(abi.ReasonDROP_NO_BACKEND, s.testService)
	}
	return s.forward(name, s.flow(), want, s.data(5)...)
}

// A fragment's backend may die before its last fragment comes.
func testFragmentOfDeadBackend(t *testing.T) {
	w := &testWorld{}
	s := scenario{client: client4, testService: w.add(testService{vip: vipAddress(true, 1), protocol: model.UDP, port: singlePort(servicePort),
		backends: []testBackend{{}}})}
	d := loadTestDirector(t, w)
	frames := pieces(8, s.data(600)...)
	d.run(t, frames[0], 0)
	s.backends[0].state = abi.BackendStateBACKEND_DOWN
	d.put(t, "backends", s.first, s.abiBackend(0))
	d.check(t, []row{row{name: "later", in: frames[1]}.dropped(abi.ReasonDROP_NO_BACKEND, s.testService)})
}

// With affinity source-ip one client's connections stay together, with a prefix those of its neighbors, and
// with destination-port those of all clients; the outer source follows the same hash.
func testAffinity(t *testing.T) {
	w := &testWorld{}
	var rows []row
	for _, is4 := range []bool{true, false} {
		backends := make([]testBackend, 64)
		slots := make([]model.Slot, 251)
		for i := range backends {
			backends[i] = testBackend{mode: model.GUE, address: backendAddress(is4, i+1)}
		}
		for i := range slots {
			slots[i] = model.Slot{Owner: uint32(i % 64), Next: uint32((i + 1) % 64)}
		}
		for number, affinity := range []model.Affinity{model.AffinityFlow, model.AffinitySourceIP, model.AffinityDestinationPort,
			model.SourcePrefix(model.AffinityPrefix{V4: 24, V6: 64}), model.SourcePrefix(model.AffinityPrefix{V4: 30, V6: 126})} {
			s := scenario{client: clientOf(is4), testService: w.add(testService{vip: vipAddress(is4, number+1), protocol: model.UDP,
				affinity: affinity, salt: 0xfeedface, backends: backends, ring: model.Ring{Slots: slots}})}
			chosen := map[int]bool{}
			for port := uint16(1); port <= 40; port++ {
				headers, f := s.to(port)
				backend, _ := twinPick(s.testService, f)
				chosen[backend] = true
				rows = append(rows, s.forward(fmt.Sprintf("%v affinity %s port %d", s.vip, affinity, port), f, backend, headers...))
			}
			if (len(chosen) == 1) != (affinity.Kind() == model.AffinitySourceIP.Kind() || affinity.Prefix().V4 < 32) {
				t.Errorf("by affinity %s the twin gives one client's connections to several ports %d backends", affinity, len(chosen))
			}
			// Forty neighbors of the client: their addresses differ in the last byte.
			clear(chosen)
			for last := range byte(40) {
				address := s.client.AsSlice()
				address[len(address)-1] = last
				neighbor := s
				neighbor.client, _ = netip.AddrFromSlice(address)
				headers, f := neighbor.to(1)
				backend, _ := twinPick(s.testService, f)
				chosen[backend] = true
				rows = append(rows, neighbor.forward(fmt.Sprintf("%v affinity %s client %v", s.vip, affinity, neighbor.client), f, backend, headers...))
			}
			want := map[model.Affinity]int{model.AffinityDestinationPort: 1, model.SourcePrefix(model.AffinityPrefix{V4: 24, V6: 64}): 1}[affinity]
			if n := len(chosen); want > 0 && n != want || want == 0 && n < 6 || affinity.Prefix().V4 == 30 && n > 10 {
				t.Errorf("by affinity %s the twin gives forty neighbors %d backends", affinity, n)
			}
		}
	}
	loadTestDirector(t, w).check(t, rows)
}

// A backend on the director's own host gets its packets as they came.
func testLocalBackend(t *testing.T) {
	w := &testWorld{}
	var rows []row
	for _, is4 := range []bool{true, false} {
		for _, mode := range []model.Mode{model.L2DSR, model.IPIP, model.GUE} {
			s := scenario{client: clientOf(is4), testService: w.add(testService{vip: vipAddress(is4, len(w.services)), protocol: model.TCP,
				port: singlePort(servicePort), backends: []testBackend{{mode: mode, address: backendAddress(is4, 1), local: true}}})}
			for _, size := range []int{100, 4000} {
				r := row{name: fmt.Sprintf("%v, %s, %d bytes", s.vip, mode, size), in: build(s.sized(size)...)}.passed(abi.ReasonPASS_LOCAL)
				r.backend = s.first
				rows = append(rows, r)
			}
		}
	}
	loadTestDirector(t, w).check(t, rows)
}
