package datapath

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/packet"
)

// knownFlow is what the model of flow memory knows of a flow.
type knownFlow struct {
	backend uint32
	over    bool
}

// flowModel is flow memory without a limit, a hash or a clock.
type flowModel struct {
	*testService
	known map[uint16]knownFlow // by the client's port
}

func (m flowModel) alive(c uint32) bool {
	return m.backends[c].state != directorBackendStateBACKEND_DOWN
}

func (m flowModel) first(candidates []uint32) int {
	for _, c := range candidates {
		if m.alive(c) {
			return int(c)
		}
	}
	return -1
}

// packet says whose a packet is, and remembers it.
func (m flowModel) packet(f model.Flow, flags uint8) int {
	number := m.ring.SlotOf(f.Hash(m.salt, m.affinity))
	row := m.ring.Row(number)
	next := m.ring.Slots[number].Next
	listed := next != model.NoBackend && next&model.ListFlag != 0
	if !listed && !m.settling {
		return m.first(row)
	}
	syn := m.protocol == model.TCP && flags == synFlag
	flow, known := m.known[f.SourcePort]
	if known && m.alive(flow.backend) && !(syn && flow.over && m.backends[flow.backend].state == directorBackendStateBACKEND_DRAINING) {
		flow.over = flow.over && !syn || m.protocol == model.TCP && flags == finFlag
		m.known[f.SourcePort] = flow
		return int(flow.backend)
	}
	order := row
	if !known && !syn && listed {
		order = nil
		for _, position := range m.ring.Lists[next&^model.ListFlag].Oldest {
			order = append(order, row[position])
		}
	}
	chosen := m.first(order)
	if chosen >= 0 {
		m.known[f.SourcePort] = knownFlow{uint32(chosen), m.protocol == model.TCP && flags == finFlag}
	}
	return chosen
}

// Random packets over a random history of rings and backends, on changing CPUs:
// the program and its model agree, and a flow whose backend is alive never changes
// it.
func testFlowRandom(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 6))
		w := &testWorld{}
		random := randomService(r, 1)
		random.memory, random.settling, random.segment = true, seed%2 == 0, model.Segment{}
		for len(random.backends) < 4 {
			random.backends = append(random.backends, random.backends[0])
		}
		for i := range random.backends {
			random.backends[i] = testBackend{mode: model.L2DSR, address: random.backends[i].address}
		}
		random.ring = randomRing(r, len(random.backends))
		m := flowModel{w.add(random), map[uint16]knownFlow{}}
		d := loadTestDirector(t, w)
		refused := d.flowCount(t, directorFlowEventFLOW_REFUSED)
		m.history(t, d, r, seed)
		if d.flowCount(t, directorFlowEventFLOW_REFUSED) != refused {
			t.Errorf("seed %d: flows were refused: the model cannot know", seed)
		}
	}
}

func (m flowModel) history(t *testing.T, d *testDirector, r *rand.Rand, seed uint64) {
	t.Helper()
	s := scenario{testService: m.testService, client: clientOf(m.vip.Is4())}
	for i := range rounds(4000) {
		switch r.IntN(40) {
		case 0:
			s.setRing(t, d, randomRing(r, len(m.backends)))
		case 1:
			s.setBackend(t, d, r.IntN(len(m.backends)), randomState(r))
		}
		port := uint16(1000 + r.IntN(60))
		flags := []uint8{synFlag, ackFlag, ackFlag, finFlag}[r.IntN(4)]
		before, known := m.known[port]
		f := model.Flow{Source: s.client, Destination: m.vip, SourcePort: port, DestinationPort: m.port.First, Protocol: uint8(m.protocol)}
		want := m.packet(f, flags)
		var got int
		send := func() {
			action, out := d.run(t, build(ip(s.client, m.vip), s.segment4(port, m.port.First, flags), packet.Text("x")), 0)
			got = m.receiver(t, action, out)
		}
		// A SYN does not look at what other CPUs know.
		if flags == ackFlag && ebpf.MustPossibleCPU() > 1 && r.IntN(20) == 0 {
			onCPU(t, 1, send) // and back, where the next SYN looks for it
		}
		send()
		if got != want {
			t.Fatalf("seed %d, packet %d (%v, flags %#x, port %d): backend %d, the model says %d", seed, i, m.protocol, flags, port, got, want)
		}
		if m.settling && known && m.alive(before.backend) && !before.over && got != int(before.backend) {
			t.Fatalf("seed %d, packet %d: the flow of port %d went from backend %d to %d", seed, i, port, before.backend, got)
		}
	}
}

// randomRing has distinct candidates in each row, as real rings have.
func randomRing(r *rand.Rand, backends int) model.Ring {
	var ring model.Ring
	for range 61 {
		row := r.Perm(backends)
		slot := model.Slot{Owner: uint32(row[0]), Next: uint32(row[1])}
		if r.IntN(2) == 0 {
			list := model.CandidateList{}
			for _, c := range row[1 : 2+r.IntN(min(backends, model.MaxCandidates)-1)] {
				list.Next = append(list.Next, uint32(c))
			}
			for _, position := range r.Perm(len(list.Next) + 1) {
				list.Oldest = append(list.Oldest, uint8(position))
			}
			slot.Next = model.ListFlag | uint32(len(ring.Lists))
			ring.Lists = append(ring.Lists, list)
		}
		ring.Slots = append(ring.Slots, slot)
	}
	return ring
}
