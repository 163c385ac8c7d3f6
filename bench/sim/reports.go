package sim

import "math"

// reports are what servers have reported: how many requests they have. Each reports every interval,
// one after the other, so that the oldest report is an interval old, and reports are half an
// interval old on average.
type reports struct {
	interval float64
	has      []int32  // now
	told     []int32  // as last reported
	number   []uint32 // how many reports each server has sent
	next     int      // the server that reports next
	round    float64  // how often all have reported
	due      float64
}

func newReports(interval float64, has []int32) *reports {
	r := &reports{interval: interval, has: has, told: has, number: make([]uint32, len(has)), due: math.Inf(1)}
	if interval > 0 {
		r.told, r.due = make([]int32, len(has)), 0
	}
	return r
}

// before makes those servers report whose time comes before this one.
func (r *reports) before(now float64) {
	for r.due <= now {
		r.told[r.next] = r.has[r.next]
		r.number[r.next]++
		if r.next++; r.next == len(r.has) {
			r.next = 0
			r.round++
		}
		r.due = (r.round + float64(r.next)/float64(len(r.has))) * r.interval
	}
}
