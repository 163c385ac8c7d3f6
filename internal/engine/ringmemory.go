package engine

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"weir.io/weir/internal/maglev"
)

// mostRingSlots bounds the slots of the rings that a planner remembers, of 8 bytes each. Rings are
// asked for when the rows of their service are made again, and most services stay as they are: of
// those that have not changed for long a ring is made again, as often as there are generations in
// the log.
const mostRingSlots = 1 << 21

// ringMemory holds rings of generations that are in use: those that were asked for last, where all
// would be too many. It is for concurrent use.
type ringMemory struct {
	most int // slots; 0: mostRingSlots

	mu    sync.Mutex
	rings map[digest]*knownRing
	slots int    // of all rings that were made
	turn  uint64 // of plans
	made  int    // rings, for tests
}

type knownRing struct {
	once  sync.Once
	ring  maglev.Generation
	slots int
	there bool // it is made
	used  uint64
}

// of returns a generation's ring. Whoever asks for one that another is making waits for it.
func (m *ringMemory) of(g *located) maglev.Generation {
	m.mu.Lock()
	if m.rings == nil {
		m.rings = map[digest]*knownRing{}
	}
	k := m.rings[g.ring]
	if k == nil {
		k = &knownRing{}
		m.rings[g.ring] = k
	}
	k.used = m.turn
	m.mu.Unlock()
	k.once.Do(func() {
		k.ring = makeRing(&g.Generation)
		m.mu.Lock()
		defer m.mu.Unlock()
		k.slots, k.there = len(k.ring.Owners), true
		m.slots += k.slots
		m.made++
		m.shrink()
	})
	return k.ring
}

// shrink forgets the rings that have not been asked for for longest, if there are too many: so
// many that this is not to be done for each. The lock is held.
func (m *ringMemory) shrink() {
	most := cmp.Or(m.most, mostRingSlots)
	if m.slots <= most {
		return
	}
	oldest := slices.SortedFunc(maps.Keys(m.rings), func(a, b digest) int {
		return cmp.Or(cmp.Compare(m.rings[a].used, m.rings[b].used), slices.Compare(a[:], b[:]))
	})
	for _, d := range oldest {
		if m.slots <= most/2 {
			return
		}
		m.forget(d)
	}
}

// forget forgets a ring that was made. Who is using it goes on.
func (m *ringMemory) forget(d digest) {
	if k := m.rings[d]; k.there {
		m.slots -= k.slots
		delete(m.rings, d)
	}
}

// keep forgets all rings but those of these memberships: the plan is made.
func (m *ringMemory) keep(memberships []*membership) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn++
	used := make(map[digest]bool, len(m.rings))
	for _, all := range memberships {
		for i := range all.log {
			if d := all.log[i].ring; m.rings[d] != nil {
				used[d] = true
			}
		}
	}
	for d := range m.rings {
		if !used[d] {
			m.forget(d)
		}
	}
}
