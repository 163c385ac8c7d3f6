package datapath

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// carriesRow says whether a packet of flow f takes its row along: those of open
// connections and all datagrams do, whole.
func carriesRow(headers []packet.Header) bool {
	if len(headers) < 2 {
		return false
	}
	for _, h := range headers {
		switch h := h.(type) {
		case packet.TCPHeader:
			if h.Flags&packet.SYN != 0 {
				return false
			}
		case packet.IPv4Header:
			if h.MF || h.Offset > 0 {
				return false
			}
		case packet.FragmentHeader:
			if h.More || h.Offset > 0 {
				return false
			}
		}
	}
	return true
}

// row is the private data of GUE for a packet that goes to a backend: the other
// candidates, the oldest owner first, and those that are down after the others.
func (s *testService) row(f model.Flow, backend int, headers []packet.Header) []byte {
	if s.backends[backend].pod != 0 {
		return s.rowOfPods(f, backend, headers)
	}
	if !carriesRow(headers) {
		return nil
	}
	if s.relayed != nil {
		return append([]byte{0x55, 1, 0, 0xff}, s.relayed.address.AsSlice()...)
	}
	var hops []byte
	most, count, below := model.MaxCandidates-1, 0, 0
	if s.backends[backend].address.Is6() {
		most = model.MaxCandidates6 - 1
	}
	for _, c := range s.others(f, backend) {
		if count < most {
			hops = append(hops, s.backends[c].address.AsSlice()...)
			count++
			if s.backends[c].state == abi.BackendStateBACKEND_DOWN {
				below++
			}
		}
	}
	if count == 0 {
		return nil
	}
	if model.Protocol(f.Protocol).Datagrams() {
		return append([]byte{0x55, byte(count | below<<4), 0, 0}, hops...)
	}
	return append([]byte{0x57, byte(count), 0, 0}, hops...)
}

// rowOfPods is the same for a pod: a header, and then of each candidate its host's address
// and what that calls it. The first is the one that it goes to.
func (s *testService) rowOfPods(f model.Flow, backend int, headers []packet.Header) []byte {
	candidates := []uint32{uint32(backend)}
	if carriesRow(headers) {
		candidates = append(candidates, s.others(f, backend)...)
	}
	most := model.MaxCandidates
	if s.backends[backend].address.Is6() {
		most = model.MaxCandidates6
	}
	candidates = candidates[:min(most, len(candidates))]
	row := []byte{0x50, byte(len(candidates)), 1, 0}
	for _, c := range candidates {
		row = append(row, s.backends[c].address.AsSlice()...)
		row = binary.BigEndian.AppendUint32(row, s.backends[c].pod)
	}
	return row
}

// others are the candidates besides the one that a packet goes to: the oldest owner first,
// and those that are down after the others. Pods and others do not name each other.
func (s *testService) others(f model.Flow, backend int) []uint32 {
	candidates := byAge(&s.ring, f.Hash(s.salt, s.affinity))
	var older []uint32
	if s.before != nil {
		older = byAge(&s.before.Ring, f.Hash(s.salt, s.before.Affinity))
		newer := slices.DeleteFunc(candidates, func(c uint32) bool { return slices.Contains(older, c) })
		candidates = append(older, newer...)
	}
	next := s.ring.Slots[s.ring.SlotOf(f.Hash(s.salt, s.affinity))].Next
	lone := next == model.NoBackend || next&model.ListFlag == 0
	if model.Protocol(f.Protocol).Datagrams() && lone && len(older) == 0 && backend == int(candidates[0]) {
		return nil // nobody here has seen the owner down
	}
	if len(s.quic) > 0 && !slices.Contains(candidates, uint32(backend)) {
		return nil // its connection ID names the backend that has it
	}
	down := func(c uint32) bool { return s.backends[c].state == abi.BackendStateBACKEND_DOWN }
	last := slices.DeleteFunc(slices.Clone(candidates), func(c uint32) bool { return !down(c) })
	candidates = append(slices.DeleteFunc(candidates, down), last...)
	to := s.backends[backend]
	return slices.DeleteFunc(candidates, func(c uint32) bool {
		b := s.backends[c]
		return int(c) == backend || b.mode != model.GUE || b.gone || b.address.Is4() != to.address.Is4() || (b.pod != 0) != (to.pod != 0)
	})
}

// byAge is a hash's row, the oldest owner first; nobody, where no connection needs the slot.
func byAge(ring *model.Ring, hash uint64) (candidates []uint32) {
	slot := ring.Slots[hash>>32*uint64(len(ring.Slots))>>32]
	switch {
	case slot.Owner == model.NoBackend:
		return nil
	case slot.Next == model.NoBackend:
		return []uint32{slot.Owner}
	case slot.Next&model.ListFlag == 0:
		return []uint32{slot.Owner, slot.Next}
	}
	list := ring.Lists[slot.Next&^model.ListFlag]
	row := append([]uint32{slot.Owner}, list.Next...)
	for _, position := range list.Oldest {
		candidates = append(candidates, row[position])
	}
	return candidates
}

// testRows: which other candidates a packet in GUE names, and which packets do.
func testRows(t *testing.T) { checkRows(t, false) }

// testRowsOfPods: the same of backends that are pods.
func testRowsOfPods(t *testing.T) { checkRows(t, true) }

func checkRows(t *testing.T, pods bool) {
	const down, free = abi.BackendStateBACKEND_DOWN, abi.BackendStateBACKEND_FREE
	pair := model.Ring{Slots: []model.Slot{{Owner: 0, Next: 1}}}
	lone := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.NoBackend}}}
	list := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.ListFlag}}, Lists: []model.CandidateList{candidateList(1, 2, 3, 4, 5, 6, 7)}}
	mixed := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.ListFlag}},
		Lists: []model.CandidateList{{Next: []uint32{1, 2, 3}, Oldest: []uint8{2, 0, 3, 1}}}}
	before := func(owner, next uint32, lists ...model.CandidateList) *model.RingBefore {
		return &model.RingBefore{Affinity: model.AffinitySourceIP, Ring: model.Ring{Slots: []model.Slot{{Owner: owner, Next: next}}, Lists: lists}}
	}
	threeBefore := before(5, model.ListFlag, model.CandidateList{Next: []uint32{0, 4}, Oldest: []uint8{2, 0, 1}})
	w := &testWorld{}
	var rows []row
	for _, over4 := range []bool{true, false} {
		for _, c := range []struct {
			name   string
			ring   model.Ring
			before *model.RingBefore
			edit   func(b []testBackend)
			want   int
		}{
			{"lone", lone, nil, nil, 0},
			{"backup", pair, nil, nil, 0},
			{"backup is down", pair, nil, func(b []testBackend) { b[1].state = down }, 0},
			{"backup is gone", pair, nil, func(b []testBackend) { b[1].state, b[1].gone = free, true }, 0},
			{"backup of another mode", pair, nil, func(b []testBackend) { b[1].mode = model.IPIP }, 0},
			{"backup of another family", pair, nil, func(b []testBackend) { b[1].address = backendAddress(!over4, 999) }, 0},
			{"backup is a pod, or is none", pair, nil, func(b []testBackend) { b[1].pod ^= 0xfeed }, 0},
			{"owner is down", pair, nil, func(b []testBackend) { b[0].state = down }, 1},
			{"list", list, nil, nil, 0},
			{"list, owner and first are down", list, nil, func(b []testBackend) { b[0].state, b[1].state = down, down }, 2},
			{"likeliest first", mixed, nil, nil, 0},
			{"list, one is down", list, nil, func(b []testBackend) { b[3].state = down }, 0},
			{"likeliest is down", mixed, nil, func(b []testBackend) { b[2].state = down }, 0},
			{"all others are down", mixed, nil, func(b []testBackend) { b[1].state, b[2].state, b[3].state = down, down, down }, 0},
			{"likeliest is sent to", mixed, nil, func(b []testBackend) { b[0].state, b[1].state = down, down }, 2},
			{"list with other modes and families", list, nil, func(b []testBackend) {
				b[2].mode, b[4].mode = model.IPIP, model.L2DSR
				b[5].address = backendAddress(!over4, 998)
			}, 0},
			{"lone, and nobody before", lone, before(model.NoBackend, model.NoBackend), nil, 0},
			{"lone, and itself before", lone, before(0, model.NoBackend), nil, 0},
			{"lone, and another before", lone, before(3, model.NoBackend), nil, 0},
			{"lone, and two before", lone, before(3, 0), nil, 0},
			{"pair, and another pair before", pair, before(3, 2), nil, 0},
			{"pair, and a pair before that is down", pair, before(3, 2), func(b []testBackend) { b[2].state, b[3].state = down, down }, 0},
			{"pair that is down, and a pair before", pair, before(3, 2), func(b []testBackend) { b[0].state = down }, 1},
			{"lone, and a list before", lone, threeBefore, nil, 0},
			{"list, and a list before", mixed, threeBefore, nil, 0},
			{"list, and a list before of other modes", mixed, threeBefore, func(b []testBackend) { b[5].mode, b[4].state = model.IPIP, down }, 0},
			{"list, and more before than there is room for", list, before(7, 6), nil, 0},
		} {
			for _, p := range []struct {
				vip4     bool
				protocol model.Protocol
			}{{true, model.TCP}, {false, model.TCP}, {true, model.UDP}, {false, model.UDP}, {true, model.SCTP}, {false, model.SCTP}} {
				vip4 := p.vip4
				n := len(w.services)
				backends := make([]testBackend, 8)
				for i := range backends {
					backends[i] = testBackend{mode: model.GUE, address: backendAddress(over4, 8*n+i)}
					if pods {
						backends[i].pod = 0xfeed
						if i != 1 { // see below
							backends[i].pod = 0x1000*uint32(n+1) + uint32(i)
						}
					}
				}
				if c.edit != nil {
					c.edit(backends)
				}
				s := scenario{client: clientOf(vip4), testService: w.add(testService{vip: vipAddress(vip4, n), protocol: p.protocol,
					port: singlePort(servicePort), salt: uint64(n), backends: backends, ring: c.ring, before: c.before})}
				name := fmt.Sprintf("%s, %v, vip 4 %v, over 4 %v", c.name, p.protocol, vip4, over4)
				to := ip(s.client, s.vip)
				rows = append(rows,
					s.forward(name, s.flow(), c.want, s.data(100)...),
					s.forward(name+", odd", s.flow(), c.want, to, l4(p.protocol, clientPort, servicePort), packet.Text("odd")))
				if p.protocol.Datagrams() {
					continue
				}
				rows = append(rows,
					s.forward(name+", SYN", s.flow(), c.want, to, packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN}),
					s.forward(name+", RST", s.flow(), c.want, to, packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.RST}))
			}
		}
	}
	if !pods {
		rows = append(rows, rememberedRows(w)...)
	}
	loadTestDirector(t, w).check(t, rows)
}

// rememberedRows are those of datagrams that do not go to the first live candidate, because
// the director remembers their flow, or takes it for one of the oldest.
func rememberedRows(w *testWorld) (rows []row) {
	const down = abi.BackendStateBACKEND_DOWN
	mixed := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.ListFlag}},
		Lists: []model.CandidateList{{Next: []uint32{1, 2, 3}, Oldest: []uint8{2, 0, 3, 1}}}}
	for _, over4 := range []bool{true, false} {
		for _, c := range []struct {
			name string
			edit func(b []testBackend)
			want int
		}{
			{"the oldest", func([]testBackend) {}, 2},
			{"the oldest, owner is down", func(b []testBackend) { b[0].state = down }, 2},
			{"the oldest, owner has another mode", func(b []testBackend) { b[0].mode = model.IPIP }, 2},
			{"the oldest, another is down", func(b []testBackend) { b[3].state = down }, 2},
			{"the oldest is down", func(b []testBackend) { b[2].state = down }, 0},
			{"the oldest two are down", func(b []testBackend) { b[2].state, b[0].state = down, down }, 3},
		} {
			n := len(w.services)
			backends := make([]testBackend, 8)
			for i := range backends {
				backends[i] = testBackend{mode: model.GUE, address: backendAddress(over4, 8*n+i)}
			}
			c.edit(backends)
			s := scenario{client: clientOf(true), testService: w.add(testService{vip: vipAddress(true, n), protocol: model.UDP, memory: true,
				port: singlePort(servicePort), salt: uint64(n), backends: backends, ring: mixed})}
			for _, packet := range []string{"first", "second"} {
				rows = append(rows, s.forward(fmt.Sprintf("%s, %s packet, over 4 %v", c.name, packet, over4), s.flow(), c.want, s.data(100)...))
			}
		}
	}
	return rows
}
