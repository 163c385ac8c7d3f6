package group

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// clocks compares the clocks of the group's directors with this host's: a generation carries the
// time at which it was made, and any director removes it by its own clock.
type clocks map[netip.Addr]*clock

// clock is what is known of another director's clock.
type clock struct {
	wrote time.Time     // by that clock, when it wrote last
	off   int           // how many of its last writings in a row were too far off
	told  time.Duration // how far it is ahead, as it is told
}

// A director's writing is read up to renewFingerprint after it was written, which looks as if its
// clock was so much behind. One that is late once says nothing about a clock. A clock that differs
// by more than the first limit does so until it differs by no more than the second one: between
// them, its writings of different ages would seem to end the difference and to begin it again.
const (
	mostApart    = 2 * renewFingerprint
	apartAgain   = mostApart - renewFingerprint
	clocksAgain  = 2
	clockChanged = time.Minute // in what is told
)

// compare takes what all directors have written, and returns which clocks differ from this host's.
func (c clocks) compare(runs []writtenRun, own []netip.Addr, now time.Time) error {
	now = now.Round(0) // the time of day alone
	for a := range c {
		if !slices.ContainsFunc(runs, func(r writtenRun) bool { return r.Address == a }) {
			delete(c, a)
		}
	}
	var differ []error
	for i := range runs {
		r := &runs[i]
		if r.Clock.IsZero() || slices.Contains(own, r.Address) {
			continue
		}
		is := c[r.Address]
		if is == nil { // it may have been written long ago
			is = &clock{wrote: r.Clock}
			c[r.Address] = is
		}
		if !is.wrote.Equal(r.Clock) {
			is.see(r.Clock, now)
		}
		if is.off >= clocksAgain {
			differ = append(differ, is.differs(r.Address))
		}
	}
	return errors.Join(differ...)
}

func (c *clock) see(wrote, now time.Time) {
	c.wrote = wrote
	ahead := wrote.Sub(now)
	limit := mostApart
	if c.off >= clocksAgain {
		limit = apartAgain
	}
	if ahead.Abs() <= limit {
		c.off = 0
		return
	}
	c.off++
	if c.off == 1 || (ahead-c.told).Abs() > clockChanged {
		c.told = ahead
	}
}

func (c *clock) differs(a netip.Addr) error {
	where := "ahead of"
	if c.told < 0 {
		where = "behind"
	}
	return fmt.Errorf("the clock of director %v is %v %s this host's: let both follow the same time servers", a, c.told.Abs().Round(time.Second), where)
}
