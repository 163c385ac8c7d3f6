package forecast

import (
	"math"
	"net/netip"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
)

// open says how many connections agents report, and which share of all of them is in slots
// that move. That share is known only if all report, and if hashes are the same before and
// after.
func (c *Change) open(p *model.PlannedService) {
	if c.Before == nil {
		return
	}
	was, is := engine.OwnerAt(c.Shift.Before), engine.OwnerAt(c.Shift.After)
	all, moving := 0.0, 0.0
	complete := c.Shift.After != nil && c.Shift.Before.Affinity == c.Shift.After.Affinity
	for i := range p.Backends {
		b := &p.Backends[i]
		if b.Before == nil {
			continue
		}
		key := netip.AddrPortFrom(b.Address, b.Port)
		report := c.Reported(key)
		if report == nil {
			complete = false
			continue
		}
		total, moved, known := connectionsIn(report.Used, func(hash uint32) (owned, moves bool) { return was(hash) == key, was(hash) != is(hash) })
		if !known {
			complete = false
			continue
		}
		b.Open = new(uint64(math.Round(total)))
		all, moving = all+total, moving+moved
	}
	if complete && all > 0 {
		p.Open = new(moving / all)
	}
}

// connectionsIn estimates how many connections are in the ranges of a backend's report, and how
// many of them where slots move. Several may share a range: their number is estimated by linear
// counting (Whang, Vander-Zanden, Taylor: A linear-time probabilistic counting algorithm for
// database applications, 1990), in the slots that the backend owns. Elsewhere, where it has older
// connections, each range counts as one. If all ranges of the slots have connections there is no
// estimate.
func connectionsIn(used *model.SlotSet, at func(hash uint32) (owned, moves bool)) (total, moving float64, known bool) {
	type part struct{ ranges, used float64 }
	var own [2]part // in slots that stay, and in those that move
	var others [2]float64
	size := uint64(used.Size())
	for r := range size {
		owned, moves := at(uint32((r<<32 + 1<<31) / size)) // its middle
		n := 0
		if moves {
			n = 1
		}
		switch has := used.Has(int(r)); {
		case owned && has:
			own[n].used++
			fallthrough
		case owned:
			own[n].ranges++
		case has:
			others[n]++
		}
	}
	var counted [2]float64
	for n, p := range own {
		if counted[n] = others[n]; p.used == 0 {
			continue
		}
		if p.used == p.ranges {
			return 0, 0, false
		}
		counted[n] -= p.ranges * math.Log1p(-p.used/p.ranges)
	}
	return counted[0] + counted[1], counted[1], true
}
