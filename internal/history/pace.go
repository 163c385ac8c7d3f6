package history

import "time"

// pace is when steps are taken: at multiples of their time, by all of a service's backends
// together, so that many backends make hardly more generations than one.
type pace struct {
	now  time.Time
	each time.Duration
	next time.Time // when the next step is due; zero: none is
}

// mostAhead is how far the clock of another director, or an agent, may be ahead of this one's.
// Steps follow the clock that is furthest ahead: the other directors find nothing due.
const mostAhead = 5 * time.Second

// known returns when a step was taken, but no impossible time: the clock may have been set back
// since.
func (p *pace) known(since time.Time) time.Time {
	if since.Sub(p.now) > max(p.each, mostAhead) {
		return p.now
	}
	return since
}

// due reports whether the time of a step has passed since then, and notes when it will have passed.
func (p *pace) due(since time.Time) bool {
	at := since.Add(p.each)
	if late := at.Sub(at.Truncate(p.each)); late > 0 {
		at = at.Add(p.each - late)
	}
	if !p.now.Before(at) {
		return true
	}
	p.note(at)
	return false
}

// note notes that a step may be due at a time.
func (p *pace) note(at time.Time) {
	if p.now.Before(at) && (p.next.IsZero() || at.Before(p.next)) {
		p.next = at
	}
}

// last returns the last time at which steps were due.
func (p *pace) last() time.Time { return p.now.Truncate(p.each) }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
