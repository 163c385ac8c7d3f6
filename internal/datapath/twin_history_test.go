package datapath

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/turns"
	"weir.io/weir/lab/packet"
)

// twinBackends is how many backends a history has at most.
const twinBackends = 5

// original is what the twin is compared with.
type original interface {
	set(t *testing.T, m *twin) // after the twin has been
	sweep(t *testing.T)
	restart(t *testing.T, m *twin)
	send(t *testing.T, cpu int, f model.Flow, flags uint8) int // a packet: the number of its backend; -1: dropped
	memory(t *testing.T) []abi.FlowPlace                       // of flows
	now(t *testing.T) uint32                                   // by the clock of flows
}

// history is what happens to a service: its backends come and go, drain, get other
// weights, are lost from sight and return, its ring gets another size, its slots another
// affinity, generations leave its log, slots settle, weir runs anew, and its policy becomes
// round-robin and maglev again. Whatever is random comes from choose, which returns a number
// below n.
type history struct {
	*twin
	original
	choose      func(n int) int
	source      netip.Addr
	destination netip.AddrPort
	segment     model.Segment
	log         []twinGeneration // newest first
	older       []twinGeneration // of the other affinity
	hashed      model.Affinity   // the flows of the log's slots
	size        uint32
	weights     [twinBackends]uint16 // 0: drains
	here        [twinBackends]bool
	down        [twinBackends]bool
	steady      []steadyFlow
	inTurn      bool // new connections are placed
	invented    bool // rings may have any rows, not only the log's: they keep no promise
	step        int
	what        string
}

// twinGeneration is a ring of the log.
type twinGeneration struct {
	size uint32
	maglev.Generation
}

// steadyFlow is a connection that sends something after every change.
type steadyFlow struct {
	model.Flow
	backend, life int
}

func (h *history) start(t *testing.T) {
	h.size = 31
	for number := range h.weights {
		h.weights[number], h.here[number] = 1, number < 3
	}
	h.generation()
	h.apply(t)
}

// generation puts what the members are now at the beginning of the log.
func (h *history) generation() {
	var members []maglev.Member
	var numbers []uint32
	for number := range uint32(twinBackends) {
		if h.here[number] && h.weights[number] > 0 {
			members = append(members, maglev.Member{Key: fmt.Sprint("backend", number), Weight: h.weights[number]})
			numbers = append(numbers, number)
		}
	}
	owners, backups := maglev.RingAndBackups(h.size, members)
	named := func(positions []uint32) (out []uint32) {
		for _, p := range positions {
			if p != maglev.None {
				p = numbers[p]
			}
			out = append(out, p)
		}
		return out
	}
	h.log = slices.Insert(h.log, 0, twinGeneration{h.size, maglev.Generation{Owners: named(owners), Backups: named(backups)}})
}

// leave takes a backend out of the log: one that comes back is in the generations
// since then.
func (h *history) leave(number uint32) {
	for _, g := range slices.Concat(h.log, h.older) {
		for slot := range g.Owners {
			if g.Owners[slot] == number {
				g.Owners[slot] = nobody
			}
			if g.Backups[slot] == number {
				g.Backups[slot] = nobody
			}
		}
	}
}

// nobody is a dead member.
const nobody = twinBackends

// rowsOf is the ring of generations.
func rowsOf(generations []twinGeneration) (ring model.Ring) {
	dead := maglev.Gone{nobody: maglev.None}
	var log []maglev.Generation
	for _, g := range generations {
		log = append(log, g.Generation)
	}
	table := maglev.Rows(log, dead, model.MaxCandidates)
	for _, slot := range table.Slots {
		ring.Slots = append(ring.Slots, model.Slot(slot))
	}
	ring.Older = table.Older
	for _, list := range table.Lists {
		ring.Lists = append(ring.Lists, model.CandidateList(list))
	}
	return ring
}

// apply makes twin and original what the history has come to.
func (h *history) apply(t *testing.T) { t.Helper(); h.applyRing(t, rowsOf(h.log)) }

func (h *history) applyRing(t *testing.T, ring model.Ring) {
	t.Helper()
	states := make([]model.BackendState, twinBackends)
	for number := range states {
		switch {
		case !h.here[number]:
		case h.down[number]:
			states[number] = model.Down
		case h.weights[number] == 0:
			states[number] = model.Draining
		default:
			states[number] = model.Active
		}
	}
	var before *model.RingBefore
	if len(h.older) > 0 {
		before = &model.RingBefore{Affinity: 1 - h.hashed, Ring: rowsOf(h.older)}
	}
	if h.inTurn {
		ring.Turns = h.turns()
	}
	h.twin.set(h.hashed, ring, before, states)
	h.original.set(t, h.twin)
}

// turns are those of the backends that may own slots.
func (h *history) turns() []uint32 {
	var weights [twinBackends]uint16
	for number := range weights {
		if h.here[number] {
			weights[number] = h.weights[number]
		}
	}
	return turns.Order(weights[:], math.MaxInt)
}

// owners is how many backends may own slots.
func (h *history) owners() (n int) {
	for number := range h.here {
		if h.here[number] && h.weights[number] > 0 {
			n++
		}
	}
	return n
}

// happen is one event.
func (h *history) happen(t *testing.T) {
	number, event := h.choose(twinBackends), h.choose(11)
	last := h.owners() == 1 && h.here[number] && h.weights[number] > 0
	h.what = [...]string{"weight", "drain", "leave or come", "leave or come", "health", "health", "size", "trim", "sweep or restart", "affinity", "policy"}[event]
	h.what += fmt.Sprint(" of ", number)
	switch event {
	case 0:
		h.weights[number] = uint16(1 + h.choose(3))
		h.generation()
	case 1:
		if last {
			return
		}
		h.weights[number] = 0
		h.generation()
	case 2, 3:
		if last {
			return
		}
		h.here[number] = !h.here[number]
		h.leave(uint32(number))
		h.generation()
	case 4, 5:
		h.down[number] = !h.down[number]
	case 6:
		h.log, h.size = h.log[:1], []uint32{17, 31, 61}[h.choose(3)]
		h.generation()
	case 7:
		h.log = h.log[:1+h.choose(len(h.log))]
		if h.choose(2) == 0 {
			h.older = nil
		}
	case 9:
		for _, g := range h.log {
			if g.size != h.log[0].size || len(h.older) > 0 {
				return // it waits
			}
		}
		h.older, h.log, h.hashed = h.log, nil, 1-h.hashed
		h.generation()
	case 10:
		h.inTurn = !h.inTurn
	case 8:
		if h.choose(4) == 0 {
			h.original.restart(t, h.twin)
			return
		}
		h.twin.sweep()
		h.level(t)
		h.original.sweep(t)
		return
	}
	for len(h.log) > 3 && h.log[len(h.log)-1].size != h.size || len(h.log) > 12 {
		h.log = h.log[:len(h.log)-1]
	}
	if h.invented && h.choose(4) == 0 {
		h.applyRing(t, h.inventRing())
		return
	}
	h.apply(t)
}

// inventRing has distinct candidates in each row, as real rings have, in any order.
func (h *history) inventRing() (ring model.Ring) {
	for range h.size {
		row := h.permutation(twinBackends)
		slot := model.Slot{Owner: row[0], Next: row[1]}
		if h.choose(2) == 0 {
			list := model.CandidateList{Next: row[1 : 2+h.choose(twinBackends-1)]}
			for _, position := range h.permutation(len(list.Next) + 1) {
				list.Oldest = append(list.Oldest, uint8(position))
			}
			slot.Next = model.ListFlag | uint32(len(ring.Lists))
			ring.Lists = append(ring.Lists, list)
		}
		ring.Slots = append(ring.Slots, slot)
	}
	return ring
}

func (h *history) permutation(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		j := h.choose(i + 1)
		list[i], list[j] = list[j], uint32(i)
	}
	return list
}

func (h *history) flow(port int) model.Flow {
	return model.Flow{Segment: h.segment, Source: h.source, Destination: h.destination.Addr(), SourcePort: uint16(port), DestinationPort: h.destination.Port(), Protocol: uint8(h.protocol)}
}

// level makes all remembered flows as old as in the twin, which has no clock: with the
// kernel's, some would age out between two packets, and others would become sustained. And the twin
// forgets which flows of gone backends have given way, because that depends on hashes.
func (h *history) level(t *testing.T) {
	t.Helper()
	now := h.now(t)
	since := uint8(now)
	if h.lasts {
		since -= 10
	}
	has := map[uint16]bool{}
	for place, e := range flowsIn(h.memory(t)) {
		if e.Source == abi.AddressBytes(h.source) {
			place.Seen, place.Since = now, since
			has[be16(e.SourcePort)] = true
		}
	}
	h.forgetGone(func(f model.Flow) bool { return has[f.SourcePort] })
}

// exchange sends a packet through both.
func (h *history) exchange(t *testing.T, cpu int, f model.Flow, flags uint8) int {
	t.Helper()
	h.level(t)
	got := h.send(t, cpu, f, flags)
	want := h.twin.packet(f, flags, got)
	if got != want {
		t.Fatalf("step %d (%s): packet from port %d, flags %#x, on CPU %d: backend %d got it, the twin says %d\nslot %d: %+v, settling %v\nstates %v",
			h.step, h.what, f.SourcePort, flags, cpu, got, want,
			h.slotOf(f), h.ring.Slots[h.slotOf(f)], h.settling[h.slotOf(f)], h.states)
	}
	return want
}

// cpu is one that packets of a flow come to: the first one, most of the time.
func (h *history) cpu() int {
	if h.choose(8) > 0 {
		return 0
	}
	return h.choose(min(2, ebpf.MustPossibleCPU()))
}

// goOn lets every steady flow send something: it must come to the backend that has
// the connection as long as that is up and configured. Then some other packets.
func (h *history) goOn(t *testing.T) {
	t.Helper()
	for i := range h.steady {
		s := &h.steady[i]
		has := !h.invented && s.backend >= 0 && h.alive(uint32(s.backend)) && h.lives[s.backend] == s.life
		got := h.exchange(t, h.cpu(), s.Flow, packet.ACK)
		if has && got != s.backend {
			t.Fatalf("step %d (%s): the connection from port %d was backend %d's, which is up, and went to %d",
				h.step, h.what, s.SourcePort, s.backend, got)
		}
		s.note(h.twin, got)
	}
	for range h.choose(6) {
		flags := []uint8{packet.SYN, packet.ACK, packet.ACK, packet.FIN | packet.ACK}[h.choose(4)]
		h.exchange(t, h.cpu(), h.flow(1000+h.choose(40)), flags)
	}
	if len(h.steady) < 40 && h.choose(2) == 0 {
		s := steadyFlow{Flow: h.flow(2000 + len(h.steady))}
		h.exchange(t, 0, s.Flow, packet.SYN)
		s.note(h.twin, h.exchange(t, 0, s.Flow, packet.ACK))
		h.steady = append(h.steady, s)
	}
}

func (s *steadyFlow) note(m *twin, backend int) {
	if s.backend = backend; backend >= 0 {
		s.life = m.lives[backend]
	}
}

// run is a history of so many events; it ends early when goesOn says so.
func (h *history) run(t *testing.T, events int, goesOn func() bool) {
	t.Helper()
	h.start(t)
	for h.step = range events {
		if !goesOn() {
			return
		}
		h.goOn(t)
		h.happen(t)
	}
	h.goOn(t)
}
