package schedule

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Options say what schedule to make.
type Options struct {
	Seed      uint64
	Duration  time.Duration
	Directors int // in the pool
	Backends  int // in the pool; the first two thirds are never removed or killed
	Members   int // of the directors' shared store; less than 3: none is lost
	// Tiers lets the first of two tiers of backends fail, and come back.
	Tiers bool
	// OnlyBackends leaves the directors, their queues and their store alone.
	OnlyBackends bool
	// OnlyDirectors leaves the backends alone.
	OnlyDirectors bool
}

// The shape of a schedule. The pauses leave a director time to follow one change before the next.
const (
	gap       = 1100 * time.Millisecond // between two moments, on average
	quiet     = 4 * time.Second         // at the end
	rest      = 3 * time.Second         // between two events of one director
	together  = 500 * time.Millisecond  // from the first to the second half of a double change
	doubles   = 0.33                    // of the moments are double changes
	detection = time.Second             // from a backend's death to its removal from the configuration
	longBlind = 4 * time.Second
	longLost  = 8 * time.Second // a member of the store

	tierWorks = 6 * time.Second // at least, and twice that at most
	tierFails = 3 * time.Second
)

// Begin returns the group before the first event: one director of three or more is spare, and every
// other one of the backends that come and go is there.
func Begin(o Options) Group {
	g := Group{RingSize: ringSizes[0], Queues: 1, DirectorVersions: make([]Version, o.Directors), AgentVersions: make([]Version, o.Backends)}
	for i := range o.Directors {
		g.Announced = append(g.Announced, i < 2 || i < o.Directors-1)
	}
	for i := range o.Backends {
		b := Backend{State: Active, Weight: weights[1]}
		if i >= o.stay() && (i-o.stay())%2 == 1 {
			b.State = Absent
		}
		g.Backends = append(g.Backends, b)
	}
	return g
}

// stay is how many backends are never removed or killed: connections that outlive retentions
// need some.
func (o Options) stay() int { return (2*o.Backends + 2) / 3 }

// Make returns the events of a run, in the order of their times.
func Make(o Options) []Event {
	m := &maker{
		o: o, rng: rand.New(rand.NewPCG(o.Seed, 0x77656972)), group: Begin(o),
		touched: make([]time.Duration, o.Directors), returns: make([]time.Duration, o.Backends),
	}
	for i := range m.touched {
		m.touched[i] = -rest
	}
	if o.Tiers {
		m.failTiers()
	}
	owed := 0.0
	for at := gap; at < o.Duration-quiet; at += gap/2 + time.Duration(m.rng.Int64N(int64(gap))) {
		m.due(at)
		m.now = at
		if o.OnlyBackends {
			m.changeBackends()
			continue
		}
		if o.OnlyDirectors {
			if m.mayChangeDirectors() {
				m.changeDirectors()
			}
			continue
		}
		if owed += doubles; owed >= 1 && m.double() {
			owed--
			continue
		}
		m.single()
	}
	m.due(o.Duration)
	slices.SortStableFunc(m.events, func(a, b Event) int { return int(a.At - b.At) })
	return m.events
}

// failTiers lets the first tier fail and come back from time to time. Other events are those of the same seed without tiers.
func (m *maker) failTiers() {
	rng := rand.New(rand.NewPCG(m.o.Seed, 0x74696572))
	some := func(least time.Duration) time.Duration { return least + time.Duration(rng.Int64N(int64(least))) }
	for at := some(tierWorks); ; at += some(tierWorks) {
		back := at + some(tierFails)
		if back > m.o.Duration-quiet {
			return
		}
		m.pending = append(m.pending, Event{At: at, Kind: TierFailed}, Event{At: back, Kind: TierBack})
		at = back
	}
}

// maker walks through the time of a run.
type maker struct {
	o       Options
	rng     *rand.Rand
	now     time.Duration
	group   Group
	events  []Event
	touched []time.Duration // when each director had its last event
	returns []time.Duration // when each backend was last removed
	pending []Event         // consequences of earlier events
	blind   bool            // a director is blind
	lost    bool            // a member of the store is lost
}

// add appends an event that has just been applied to the group.
func (m *maker) add(e Event) {
	e.At, e.After = m.now, m.group.Clone()
	slices.Sort(e.Backends)
	m.events = append(m.events, e)
	if e.OfOneDirector() {
		m.touched[e.Director] = m.now
	}
}

// due lets consequences of earlier events happen until a time.
func (m *maker) due(until time.Duration) {
	slices.SortStableFunc(m.pending, func(a, b Event) int { return int(a.At - b.At) })
	for len(m.pending) > 0 && m.pending[0].At <= until {
		e := m.pending[0]
		m.pending, m.now = m.pending[1:], e.At
		switch e.Kind {
		case BackendsRemoved:
			m.set(e.Backends, Absent)
		case DirectorSees:
			m.blind = false
		case StoreMemberBack:
			m.lost = false
		case TierFailed, TierBack:
			m.group.TierFailed = e.Kind == TierFailed
		case DirectorUpgraded, AgentUpgraded:
			if !m.downgrade(e) {
				continue
			}
		}
		m.add(e)
	}
}

// double makes a change of the directors and one of the backends within a second, in either order.
// It returns false if no director may change now.
func (m *maker) double() bool {
	before := len(m.events)
	backendsFirst := m.rng.IntN(2) == 0
	offset := time.Duration(m.rng.Int64N(int64(together)))
	if !m.mayChangeDirectors() {
		return false
	}
	halves := []func() bool{m.changeDirectors, m.changeBackends}
	if backendsFirst {
		slices.Reverse(halves)
	}
	for i, half := range halves {
		if i == 1 {
			second := m.now + offset
			m.due(second)
			m.now = second
		}
		half()
	}
	for i, e := range m.events[before:] {
		m.events[before+i].Double = e.Kind.OfDirectors() || e.Kind.OfBackends()
	}
	return true
}

// single makes one change: of the backends twice as often as of a director.
func (m *maker) single() {
	if m.rng.IntN(3) == 0 && m.disturbDirector() {
		return
	}
	m.changeBackends()
}

// pick returns n random elements of the list; all if it has fewer.
func (m *maker) pick(list []int, n int) []int {
	list = slices.Clone(list)
	m.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}

// oneOf tries the choices in random order until one succeeds.
func (m *maker) oneOf(choices ...func() bool) bool {
	m.rng.Shuffle(len(choices), func(i, j int) { choices[i], choices[j] = choices[j], choices[i] })
	for _, choice := range choices {
		if choice() {
			return true
		}
	}
	return false
}
