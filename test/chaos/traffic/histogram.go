package traffic

import "time"

// histogram counts durations by millisecond; those of a minute or more count together.
type histogram struct {
	counts [60001]int
	total  int
}

func (h *histogram) add(d time.Duration) {
	h.counts[min(max(int(d/time.Millisecond), 0), len(h.counts)-1)]++
	h.total++
}

// quantile returns the least whole number of milliseconds that the given share of
// the durations does not exceed.
func (h *histogram) quantile(share float64) time.Duration {
	need, seen := share*float64(h.total), 0
	for ms, n := range h.counts {
		if seen += n; seen > 0 && float64(seen) >= need {
			return time.Duration(ms+1) * time.Millisecond
		}
	}
	return 0
}
