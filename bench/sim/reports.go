package sim

import "math"

// reports are what servers have told of themselves: how many requests they have. Each
// tells it every interval, one after the other, so that the oldest is an interval old and
// they are half of one on average.
type reports struct {
	interval float64
	has      []int32  // as it is
	told     []int32  // as it was when the server told it
	number   []uint32 // how many reports of each server there were
	next     int      // who tells next
	round    float64  // how often all have
	due      float64
}

func newReports(interval float64, has []int32) *reports {
	r := &reports{interval: interval, has: has, told: has, number: make([]uint32, len(has)), due: math.Inf(1)}
	if interval > 0 {
		r.told, r.due = make([]int32, len(has)), 0
	}
	return r
}

// before lets those report whose time comes before this one.
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
