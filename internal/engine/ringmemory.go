package engine

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"weir.io/weir/internal/maglev"
)

// mostRingSlots bounds the slots of the rings that a planner remembers, of 8 bytes each. Rings are
// asked for when the rows of their service are made again, and most services do not change: one
// that has not changed for long has its rings made again, one for each generation in its log.
const mostRingSlots = 1 << 21

// ringMemory holds rings of generations that are in use: if all would be too many, those that were
// asked for last. It is for concurrent use.
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
	there bool // the ring is made
	used  uint64
}

// of returns a generation's ring. A caller waits for a ring that another goroutine is making.
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

// shrink forgets the rings whose last use is longest ago, if there are too many: enough of them
// that it need not be called for each ring. The lock is held.
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

// forget forgets a ring that was made. A goroutine that is using it goes on.
func (m *ringMemory) forget(d digest) {
	if k := m.rings[d]; k.there {
		m.slots -= k.slots
		delete(m.rings, d)
	}
}

// keep forgets all rings except those of these memberships: the plan is made.
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
