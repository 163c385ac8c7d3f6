// Package crowd follows counters of flows for which a table had no place, so that a director and an
// agent name the services whose flows crowd their tables while that goes on, and only then.
package crowd

import (
	"cmp"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

const (
	// Every is the shortest time between two readings of the counters.
	Every = 2 * time.Second
	// Lasts is how long a counter counts as growing after it has grown.
	Lasts = 10 * time.Second
	// From is how much a counter has to grow between two readings: a bucket may fill by chance
	// while its table has room, and a table that has just filled has no place for a few flows.
	From = 10
	// Named is how many services of each table are named: those with the most.
	Named = 3
)

// Watch has the counters of the last reading. The zero value has read none.
type Watch[Key comparable] struct {
	read     time.Time
	counters map[Key]counter
}

type counter struct {
	total uint64
	grew  uint64    // when it last grew by From or more
	since time.Time // when that was; zero: never
}

// Due reports whether the counters are to be read again.
func (w *Watch[Key]) Due(now time.Time) bool { return now.Sub(w.read) >= Every }

// Take takes all counters, and returns those that have grown. What the first reading counts
// happened earlier, so no counter has grown yet. A counter that is less than before has restarted.
func (w *Watch[Key]) Take(totals map[Key]uint64, now time.Time) (grown []Key) {
	first, before := w.read.IsZero(), w.counters
	w.read, w.counters = now, make(map[Key]counter, len(totals))
	for key, total := range totals {
		c := before[key]
		grew := total
		if total >= c.total {
			grew -= c.total
		}
		c.total = total
		if grew >= From && !first {
			c.grew, c.since = grew, now
			grown = append(grown, key)
		}
		w.counters[key] = c
	}
	return grown
}

// Lasting returns the counters that have grown in the last Lasts, and by how much they grew last.
func (w *Watch[Key]) Lasting(now time.Time) map[Key]uint64 {
	lasting := map[Key]uint64{}
	for key, c := range w.counters {
		if !c.since.IsZero() && now.Sub(c.since) <= Lasts {
			lasting[key] = c.grew
		}
	}
	return lasting
}

// Most sorts services by table, and returns those of each that have the most flows. It changes the
// slice.
func Most(services []model.CrowdedService) []model.CrowdedService {
	slices.SortFunc(services, func(a, b model.CrowdedService) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Service, b.Service))
	})
	named := map[string]int{}
	return slices.DeleteFunc(services, func(s model.CrowdedService) bool {
		named[s.Table]++
		return named[s.Table] > Named
	})
}
