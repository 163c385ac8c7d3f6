package schedule

import (
	"slices"
	"time"
)

// The values of the configuration.
var (
	weights   = []uint16{50, 100, 200}
	ringSizes = []uint32{2039, 1021, 4093, 1511}
)

// fewest is the least number of active backends among those that stay.
const fewest = 2

func (m *maker) stays(i int) bool { return i < m.o.stay() }
func (m *maker) goes(i int) bool  { return i >= m.o.stay() }

// backends returns the backends in one of the states.
func (m *maker) backends(which func(int) bool, states ...State) []int {
	var list []int
	for i, b := range m.group.Backends {
		if which(i) && slices.Contains(states, b.State) {
			list = append(list, i)
		}
	}
	return list
}

func (m *maker) all(int) bool { return true }

func (m *maker) set(backends []int, state State) {
	for _, i := range backends {
		m.group.Backends[i].State = state
		if state == Absent {
			m.returns[i] = m.now
		}
	}
}

// changeBackends makes one change of the configuration, more often of several backends than of one.
func (m *maker) changeBackends() bool {
	return m.oneOf(
		m.turn(BackendsAdded, m.absent, Active),
		m.turn(BackendsDrained, m.drainable, Draining),
		m.turn(BackendsReturned, m.draining, Active),
		m.turn(BackendsRemoved, m.leaving, Absent),
		m.kill, m.mix, m.reweigh, m.resize)
}

func (m *maker) several() int { return 1 + m.rng.IntN(3) }

// absent are the backends that may come: their removal is old enough to have been noticed.
func (m *maker) absent() []int {
	return slices.DeleteFunc(m.backends(m.goes, Absent), func(i int) bool {
		return m.returns[i] > 0 && m.now-m.returns[i] < 2*time.Second
	})
}

func (m *maker) draining() []int { return m.backends(m.all, Draining) }
func (m *maker) leaving() []int  { return m.backends(m.goes, Active, Draining) }

// drainable are the backends that may drain: the fewest of those that stay are left out.
func (m *maker) drainable() []int {
	stay := m.backends(m.stays, Active)
	return append(m.pick(stay, len(stay)-min(fewest, len(stay))), m.backends(m.goes, Active)...)
}

// turn brings several of the possible backends into a state.
func (m *maker) turn(kind Kind, which func() []int, to State) func() bool {
	return func() bool {
		chosen := m.pick(which(), m.several())
		if len(chosen) == 0 {
			return false
		}
		m.set(chosen, to)
		m.add(Event{Kind: kind, Backends: chosen})
		return true
	}
}

// kill kills hosts without notice. They are removed from the configuration once that has been
// noticed.
func (m *maker) kill() bool {
	chosen := m.pick(m.backends(m.goes, Active), 1+m.rng.IntN(2))
	if len(chosen) == 0 {
		return false
	}
	m.set(chosen, Dead)
	m.add(Event{Kind: BackendsKilled, Backends: chosen})
	m.pending = append(m.pending, Event{At: m.now + detection, Kind: BackendsRemoved, Backends: slices.Clone(chosen)})
	return true
}

// mix adds, drains and returns backends at once.
func (m *maker) mix() bool {
	come, drain, back := m.pick(m.absent(), 2), m.pick(m.drainable(), 1), m.pick(m.draining(), 2)
	if min(len(come), len(drain), len(back)) == 0 {
		return false
	}
	m.set(slices.Concat(come, back), Active)
	m.set(drain, Draining)
	m.add(Event{Kind: BackendsMixed, Backends: slices.Concat(come, drain, back)})
	return true
}

func (m *maker) reweigh() bool {
	chosen := m.pick(m.backends(m.all, Active), m.several())
	for _, i := range chosen {
		old := slices.Index(weights, m.group.Backends[i].Weight)
		m.group.Backends[i].Weight = weights[(old+1+m.rng.IntN(len(weights)-1))%len(weights)]
	}
	m.add(Event{Kind: WeightsChanged, Backends: chosen})
	return true
}

func (m *maker) resize() bool {
	old := slices.Index(ringSizes, m.group.RingSize)
	m.group.RingSize = ringSizes[(old+1+m.rng.IntN(len(ringSizes)-1))%len(ringSizes)]
	m.add(Event{Kind: RingResized})
	return true
}
