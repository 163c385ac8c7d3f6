package datapath

import (
	"maps"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// twin is a director with one service, written a second time from docs/internals/datapath.md
// and docs/internals/consistency.md: rows, flow memory and settling slots. Its memory has no
// limit, no hash and no clock (see history.level). Backends have numbers that no
// other one ever gets, and candidates in its ring are such numbers.
type twin struct {
	protocol model.Protocol
	affinity model.Affinity
	salt     uint64
	ring     model.Ring
	before   *model.RingBefore    // of another affinity
	states   []model.BackendState // by number; 0: not configured
	lives    []int                // how often it was taken out
	settling []bool               // by slot
	clean    []bool               // by slot: the last sweep saw no reason why
	lasts    bool                 // a flow that goes on has done so for a while
	known    map[model.Flow]twinFlow
}

// twinFlow is what a CPU remembers of a flow.
type twinFlow struct {
	backend uint32
	life    int // of the backend
	state   twinState
}

type twinState int

const (
	twinOpening   twinState = iota // only SYNs were seen since the last SYN
	twinOpen                       // fresh
	twinSustained                  // a SYN does not begin it anew
	twinClosing
)

func (m *twin) alive(c uint32) bool {
	return m.states[c] == model.Active || m.states[c] == model.Draining
}

// first is the first live one; -1: there is none.
func (m *twin) first(candidates []uint32) int {
	for _, c := range candidates {
		if m.alive(c) {
			return int(c)
		}
	}
	return -1
}

// listed returns a slot's list.
func listed(ring *model.Ring, slot int) (model.CandidateList, bool) {
	next := ring.Slots[slot].Next
	if next == model.NoBackend || next&model.ListFlag == 0 {
		return model.CandidateList{}, false
	}
	return ring.Lists[next&^model.ListFlag], true
}

func (m *twin) slotOf(f model.Flow) int { return m.ring.SlotOf(f.Hash(m.salt, m.affinity)) }

// among says that a policy chooses among all whose turn it may be.
func (m *twin) among() bool { return len(m.ring.Turns) > 0 }

func (m *twin) policy() model.Policy {
	if m.among() {
		return model.RoundRobin
	}
	return model.Maglev
}

// turn returns the backend that gets a new connection if a policy decides: the one that got
// it, if it may be its turn. The twin cannot know whose turn it is: only that the choice is
// remembered is promised.
func (m *twin) turn(got int) (backend int, decided bool) {
	active := slices.DeleteFunc(slices.Clone(m.ring.Turns), func(c uint32) bool { return m.states[c] != model.Active })
	switch {
	case len(active) == 0:
		return 0, false
	case got >= 0 && slices.Contains(active, uint32(got)):
		return got, true
	}
	return int(active[0]), true
}

// packet says whose a packet is, and remembers it.
func (m *twin) packet(f model.Flow, flags uint8, got int) int {
	slot := m.slotOf(f)
	row := m.ring.Row(slot)
	list, hasList := listed(&m.ring, slot)
	if !hasList && !m.settling[slot] {
		return m.first(row)
	}
	syn := m.protocol == model.TCP && flags == packet.SYN
	flow, known := m.known[f]
	if known && m.follows(flow, syn) {
		flow.state = m.after(flow.state, flags)
		m.known[f] = flow
		return int(flow.backend)
	}
	order := row
	if hasList && !known && !syn {
		if m.beyond(f, slot) {
			list.Oldest = list.Beyond
		}
		order = byAgeOf(row, list)
	}
	if m.before != nil && !known && !syn {
		order = append(m.older(f), order...)
	}
	chosen := m.first(order)
	if syn {
		if backend, decided := m.turn(got); decided {
			chosen = backend
		}
	}
	if chosen < 0 {
		return -1
	}
	m.known[f] = twinFlow{uint32(chosen), m.lives[chosen], firstState(m.protocol, flags)}
	return chosen
}

func byAgeOf(row []uint32, list model.CandidateList) (order []uint32) {
	for _, position := range list.Oldest {
		order = append(order, row[position])
	}
	return order
}

// older is whose a flow was before the affinity changed, the likeliest first.
func (m *twin) older(f model.Flow) []uint32 {
	ring := &m.before.Ring
	slot := ring.SlotOf(f.Hash(m.salt, m.before.Affinity))
	if ring.Slots[slot].Owner == model.NoBackend {
		return nil // nobody needs it
	}
	row := ring.Row(slot)
	if list, hasList := listed(ring, slot); hasList {
		return byAgeOf(row, list)
	}
	return row
}

// forgetGone forgets flows of backends that are gone and that the original does not have any more:
// their places are free.
func (m *twin) forgetGone(has func(f model.Flow) bool) {
	maps.DeleteFunc(m.known, func(f model.Flow, flow twinFlow) bool { return !m.there(flow) && !has(f) })
}

// there says whether the flow's backend is configured, and has been ever since.
func (m *twin) there(flow twinFlow) bool {
	return m.states[flow.backend] != 0 && m.lives[flow.backend] == flow.life
}

// beyond says whether a flow was in the second of the two slots of an older ring that
// its slot has parts of, and whether that makes a difference.
func (m *twin) beyond(f model.Flow, slot int) bool {
	list, _ := listed(&m.ring, slot)
	if m.ring.Older == 0 || list.Beyond == nil {
		return false
	}
	hash, size := f.Hash(m.salt, m.affinity)>>32, uint64(len(m.ring.Slots))
	first := hash // down to the first one of the slot: the twin has time
	for low := uint64(0); low < first; {
		if middle := (low + first) / 2; int(middle*size>>32) == slot {
			first = middle
		} else {
			low = middle + 1
		}
	}
	return hash*uint64(m.ring.Older)>>32 != first*uint64(m.ring.Older)>>32
}

// follows says whether the flow's backend still gets its packets.
func (m *twin) follows(flow twinFlow, syn bool) bool {
	if !m.alive(flow.backend) || m.lives[flow.backend] != flow.life {
		return false
	}
	return m.states[flow.backend] == model.Active || !syn || flow.state != twinClosing
}

func firstState(protocol model.Protocol, flags uint8) twinState {
	switch {
	case protocol == model.TCP && flags == packet.SYN:
		return twinOpening
	case protocol == model.TCP && flags&packet.FIN != 0:
		return twinClosing
	}
	return twinOpen
}

// after is what a packet makes of a flow's state.
func (m *twin) after(state twinState, flags uint8) twinState {
	is := firstState(m.protocol, flags)
	switch {
	case is == twinOpening && state == twinSustained:
		return twinSustained
	case is == twinOpen && state == twinClosing:
		return twinClosing // half closed
	case is == twinOpen && state != twinOpening && m.lasts:
		return twinSustained
	}
	return is
}

// set is a change of rings and backends.
func (m *twin) set(affinity model.Affinity, ring model.Ring, older *model.RingBefore, states []model.BackendState) {
	before, old := *m, m.settling
	for slot := range before.ring.Slots {
		// An owner that goes down or comes back.
		owner := before.ring.Slots[slot].Owner
		turns := before.states[owner] != 0 && states[owner] != 0 && before.alive(owner) != aliveIn(uint8(states[owner]))
		if _, hasList := listed(&before.ring, slot); turns && !hasList {
			old[slot] = true
		}
	}
	for number, state := range states {
		if state == 0 && before.states[number] != 0 {
			m.lives[number]++
		}
	}
	m.affinity, m.ring, m.before, m.states = affinity, ring, older, slices.Clone(states)
	m.settling, m.clean = make([]bool, len(ring.Slots)), make([]bool, len(ring.Slots))
	for slot := range ring.Slots {
		if _, hasList := listed(&ring, slot); hasList {
			continue
		}
		m.settling[slot] = older != nil || m.among() || !m.alive(ring.Slots[slot].Owner) ||
			len(before.ring.Slots) > 0 && (affinity != before.affinity || before.before != nil) || before.mayHaveOthers(&ring, slot, old)
	}
}

// mayHaveOthers says whether flows of a slot of the next ring may be of another
// backend than its owner, if the ring has a list for it no more.
func (m *twin) mayHaveOthers(next *model.Ring, slot int, settling []bool) bool {
	if len(m.ring.Slots) == 0 {
		return false // the first ring
	}
	if len(m.ring.Slots) != len(next.Slots) {
		return true
	}
	_, hadList := listed(&m.ring, slot)
	return hadList || settling[slot] || m.ring.Slots[slot].Owner != next.Slots[slot].Owner
}

// sweep settles slots that two sweeps in a row see no reason to ask memory for.
func (m *twin) sweep() {
	if !slices.Contains(m.settling, true) || m.before != nil || m.among() {
		return
	}
	needed := make([]bool, len(m.ring.Slots))
	for slot := range needed {
		needed[slot] = !m.alive(m.ring.Slots[slot].Owner)
	}
	for f, flow := range m.known {
		slot := m.slotOf(f)
		needed[slot] = needed[slot] || m.there(flow) && m.ring.Slots[slot].Owner != flow.backend
	}
	for slot := range needed {
		if m.clean[slot] && !needed[slot] {
			m.settling[slot] = false
		}
		m.clean[slot] = !needed[slot]
	}
}

// remembers is how many flows are remembered of backends that are there.
func (m *twin) remembers() (n int) {
	for _, flow := range m.known {
		if m.there(flow) {
			n++
		}
	}
	return n
}

func newTwin(protocol model.Protocol, affinity model.Affinity, salt uint64, backends int) *twin {
	return &twin{known: map[model.Flow]twinFlow{}, protocol: protocol, affinity: affinity, salt: salt,
		states: make([]model.BackendState, backends), lives: make([]int, backends)}
}
