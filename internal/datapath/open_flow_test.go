package datapath

import (
	"math/rand/v2"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// ownPlaces are the numbers of a flow's own places, as own_place works them out.
func (d *testDirector) ownPlaces(s scenario, port uint16) []uint32 {
	settings, f := d.world.abiSettings(), s.flowFrom(port)
	hash := f.PlaceHash(settings.FlowSalt, s.index)
	var numbers []uint32
	for _, bits := range []uint32{uint32(hash >> 32), uint32(hash), uint32(hash >> 16)} {
		number := uint32(uint64(bits)*uint64(settings.FlowBuckets)>>32)*flows.Ways + bits%flows.Ways
		if f.Source.Is6() {
			number &^= 1
		}
		numbers = append(numbers, number)
	}
	if f.Source.Is4() {
		return numbers[:2]
	}
	return numbers
}

// A new flow lies in its first line if there is room: of IPv4 two flows have room.
func testFlowFirstLine(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		lines := map[uint32]int{}
		room := 2
		if s.client.Is6() {
			room = 1
		}
		full := false
		for port := range uint16(testFlowBuckets * flows.Ways / 2) {
			line := d.ownPlaces(s, clientPort+port)[0] / 2
			if lines[line] == room {
				full = true
				continue // it would take places of other lines
			}
			lines[line]++
			s.goes(t, d, clientPort+port, synFlag)
			found := false
			for i := line * 2; i < line*2+2; i++ {
				var e abi.FlowEntry
				found = found || flows.ReadPlace(d.flowPlaces(t)[line*2:][:2], int(i&1), &e) && e.SourcePort == be16(clientPort+port)
			}
			if !found {
				t.Fatalf("%v %v: the flow from port %d is not in line %d, which had room", s.name, s.vip, clientPort+port, line)
			}
		}
		if !full {
			t.Error("no line was full: the test shows too little")
		}
	})
}

// Most packets go the short way, which only flows in their first line have. What becomes of a packet and
// its flow is the same by the long way.
func testFlowShortWay(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.goes(t, d, clientPort, ackFlag)
		places, own := d.flowPlaces(t), d.ownPlaces(s, clientPort)
		wide := s.client.Is6()
		begun := [2]abi.FlowPlace(places[own[0]&^1:][:2])
		if !wide {
			begun[0] = places[own[0]]
		}
		r := rand.New(rand.NewPCG(7, 8))
		kept, fresh := 0, 0
		for range 4000 {
			place, header := s.randomFlow(d, r, begun[0])
			for i := range s.backends {
				s.setBackend(t, d, i, []abi.BackendState{abi.BackendStateBACKEND_ACTIVE, abi.BackendStateBACKEND_ACTIVE,
					abi.BackendStateBACKEND_DRAINING, abi.BackendStateBACKEND_SUSPECT, abi.BackendStateBACKEND_DOWN}[r.IntN(5)])
			}
			type outcome struct {
				backend int
				flow    abi.FlowPlace
			}
			var ways [2]outcome
			for choice, number := range []uint32{own[0], own[1]} {
				clear(places)
				places[number] = place
				if wide {
					places[number|1] = begun[1]
				}
				action, out := d.run(t, build(ip(s.client, s.vip), header, packet.Text("client")), 0)
				ways[choice].backend = s.receiver(t, action, out)
				if found := s.remembered(t, d)[clientPort]; found != nil {
					ways[choice].flow = *found
				}
			}
			short, long := ways[0], ways[1]
			// The short way may leave the number to a later packet: PROOF_LATE, and this segment.
			if late := long.flow.Next - place.Next; short.flow.Next == place.Next && late < 1<<16+uint32(len("client")) {
				long.flow.Next = place.Next
			}
			if short != long {
				t.Fatalf("%v %v: %+v of flow %+v: backend %d and then %+v by the short way, %d and %+v by the long one",
					s.name, s.vip, header, place, short.backend, short.flow, long.backend, long.flow)
			}
			switch abi.FlowState(place.State) {
			case abi.FlowStateFLOW_ESTABLISHED, abi.FlowStateFLOW_PROVED, abi.FlowStateFLOW_ACTIVE:
				kept++
			case abi.FlowStateFLOW_BEGUN, abi.FlowStateFLOW_TWICE:
				fresh++
			}
		}
		if kept < 500 || fresh < 250 {
			t.Errorf("%d flows were kept and %d fresh: the test shows too little", kept, fresh)
		}
	})
}

// randomFlow makes something else of a flow, and a segment that may go on with it.
func (s scenario) randomFlow(d *testDirector, r *rand.Rand, place abi.FlowPlace) (abi.FlowPlace, packet.Header) {
	states := []abi.FlowState{
		abi.FlowStateFLOW_ESTABLISHED, abi.FlowStateFLOW_PROVED, abi.FlowStateFLOW_BEGUN, abi.FlowStateFLOW_BEGUN,
		[]abi.FlowState{
			abi.FlowStateFLOW_SYN, abi.FlowStateFLOW_LEARNED, abi.FlowStateFLOW_CLOSING, abi.FlowStateFLOW_RESET,
			abi.FlowStateFLOW_ANSWERED, abi.FlowStateFLOW_PARTED, abi.FlowStateFLOW_CUT, abi.FlowStateFLOW_TOLD,
		}[r.IntN(8)],
	}
	if s.protocol == model.UDP {
		states = []abi.FlowState{abi.FlowStateFLOW_ONCE, abi.FlowStateFLOW_ACTIVE, abi.FlowStateFLOW_ACTIVE, abi.FlowStateFLOW_TWICE, abi.FlowStateFLOW_TOLD_UDP}
	}
	backend := r.IntN(len(s.backends))
	place.State = uint8(states[r.IntN(len(states))])
	place.Seen = d.now() - []uint32{0, 0, 0, 1, 2, 7, 8, 9, 60, 300, 2000, 6900, 7500}[r.IntN(13)]
	place.Since = uint8(d.now() - uint32(r.IntN(5)))
	place.Backend, place.Epoch = s.first+uint32(backend), s.backends[backend].epoch
	if r.IntN(16) == 0 {
		place.Epoch++
	}
	place.Next = 0
	sequence := r.Uint32()
	if s.protocol == model.TCP && r.IntN(16) > 0 {
		place.Next = max(1, sequence+uint32([]int32{0, 0, 1, -1, 1000, -1000, 1 - 1<<16, -1 << 16, 1 << 18, -1<<20 - 9, r.Int32()}[r.IntN(11)]))
	}
	header := s.segment4(clientPort, servicePort, []uint8{ackFlag, ackFlag, ackFlag, ackFlag, synFlag, finFlag, rstFlag, packet.SYN | packet.ACK, 0}[r.IntN(9)])
	if tcp, is := header.(packet.TCPHeader); is {
		tcp.Seq = sequence
		header = tcp
	}
	return place, header
}
