package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
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
