package engine

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// memory holds only the values that were asked for last time: it is bounded by what is in use.
type memory[K comparable, V any] struct {
	values map[K]V
	spare  map[K]V // empty, for the next ones
}

// recall returns the values of n keys. Values that it does not remember are computed in parallel,
// each once; compute gets the number of one of their keys. The result may be read until the next
// call.
func (m *memory[K, V]) recall(n int, key func(i int) K, compute func(i int) V) map[K]V {
	values := m.spare
	if values == nil {
		values = make(map[K]V, n)
	}
	var missing []int
	for i := range n {
		k := key(i)
		if _, found := values[k]; found {
			continue
		}
		v, found := m.values[k]
		if !found {
			missing = append(missing, i)
		}
		values[k] = v
	}
	computed := make([]V, len(missing))
	inParallel(len(missing), func(j int) { computed[j] = compute(missing[j]) })
	for j, i := range missing {
		values[key(i)] = computed[j]
	}
	clear(m.values)
	m.values, m.spare = values, m.values
	return values
}

// inParallel calls do with 0 to n-1, on all processors, and returns when all
// calls have.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	workers.Wait()
}

// recentRings are the rings that were asked for lately: one costs milliseconds.
type recentRings struct {
	most        int // if they are more, all but those that were asked for last are forgotten; 0: no bound
	now, before map[digest]maglev.Generation
}

// age forgets the rings that were not asked for since the call before.
func (r *recentRings) age() { r.now, r.before = nil, r.now }

func (r *recentRings) of(g *model.Generation) maglev.Generation {
	key := ringDigest(g)
	ring, known := r.now[key]
	if known {
		return ring
	}
	if ring, known = r.before[key]; !known {
		ring = makeRing(g)
	}
	if r.most > 0 && len(r.now) >= r.most {
		r.age()
	}
	if r.now == nil {
		r.now = map[digest]maglev.Generation{}
	}
	r.now[key] = ring
	return ring
}

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
