package health

import (
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// line has the targets that count in one segment. Probes under way are shared by lines and not by
// targets: a tenant with thousands of backends that do not answer delays its own probes only.
type line struct {
	segment   model.Segment
	place     int // in order
	queue     queue
	targets   int
	running   int
	diagnoses int
	late      time.Duration // by how much a probe began too late for want of a place
	lateAt    time.Time
}

// lines are those of all segments with targets. They take turns.
type lines struct {
	of    map[model.Segment]*line
	order []*line
	turn  int // the place of the one whose turn is next
}

// join counts one more target in a segment, and returns the line for it.
func (s *lines) join(segment model.Segment) *line {
	l := s.of[segment]
	if l == nil {
		l = &line{segment: segment, place: len(s.order)}
		s.of[segment], s.order = l, append(s.order, l)
	}
	l.targets++
	return l
}

// leave counts one target less. Probes that are under way count until they end.
func (s *lines) leave(l *line) {
	l.targets--
	s.close(l)
}

// close forgets a line with nothing in it.
func (s *lines) close(l *line) {
	if l.targets > 0 || l.running > 0 || l.diagnoses > 0 || s.of[l.segment] != l {
		return
	}
	delete(s.of, l.segment)
	s.order = slices.Delete(s.order, l.place, l.place+1)
	for i := l.place; i < len(s.order); i++ {
		s.order[i].place = i
	}
}

// mayHave reports whether a line may have one more of something of which it has some, and of which as
// many are free: no more than it leaves to others. So some are free for a tenant that has none, however
// many others wait for their timeouts. What is in no tenant's network may have all while it is alone.
func (s *lines) mayHave(l *line, has, free int) bool {
	if len(s.order) == 1 && l.segment == (model.Segment{}) {
		return free > 0
	}
	return has < free
}

// due takes the targets out whose probes are due and may begin, one of each line in turn.
func (s *lines) due(before time.Time, free int, begin func(*line, *target)) {
	var waiting []*line
	for i := range s.order {
		if l := s.order[(s.turn+i)%len(s.order)]; l.isDue(before) {
			waiting = append(waiting, l)
		}
	}
	for len(waiting) > 0 {
		left := waiting[:0]
		for _, l := range waiting {
			if !s.mayHave(l, l.running, free) {
				continue
			}
			free--
			l.running++
			s.turn = l.place + 1
			if begin(l, l.queue.first()); l.isDue(before) {
				left = append(left, l)
			}
		}
		waiting = left
	}
}

func (l *line) isDue(before time.Time) bool {
	return len(l.queue) > 0 && l.queue[0].due.Before(before)
}

// wait returns how long it is until the next probe of a line that may begin one, and whether another
// line has to wait for the end of a probe.
func (s *lines) wait(now time.Time, free int) (pause time.Duration, held bool) {
	pause = idle
	for _, l := range s.order {
		switch {
		case len(l.queue) == 0:
		case s.mayHave(l, l.running, free):
			pause = min(pause, max(0, l.queue[0].due.Sub(now)))
		default:
			held = true
		}
	}
	return pause, held
}

// lateBy is how much too late a probe begins that is worth a word.
const lateBy = time.Second

// noteLate remembers that a probe begins too late.
func (l *line) noteLate(due, now time.Time) {
	if late := now.Sub(due); late > lateBy {
		l.late, l.lateAt = late, now
	}
}

// Late is how late the probes of a segment begin, because as many are under way as it may have.
type Late struct {
	Segment model.Segment
	By      time.Duration
}

// Late returns the segments whose probes began too late within the last minute, or should have begun.
func (c *Checker) Late() (found []Late) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, l := range c.lines.order {
		by := time.Duration(0)
		if now.Sub(l.lateAt) < ownEvery {
			by = l.late
		}
		if len(l.queue) > 0 {
			by = max(by, now.Sub(l.queue[0].due))
		}
		if by > lateBy {
			found = append(found, Late{l.segment, by})
		}
	}
	slices.SortFunc(found, func(a, b Late) int { return a.Segment.Compare(b.Segment) })
	return found
}

// inTurn returns targets with those of each segment as early as its part of all lets them be: one
// tenant's new backends do not delay another's.
func inTurn(targets []*target) []*target {
	had, rank := map[*line]int{}, make(map[*target]int, len(targets))
	for _, t := range targets {
		rank[t] = had[t.line]
		had[t.line]++
	}
	if len(had) > 1 {
		slices.SortStableFunc(targets, func(a, b *target) int { return rank[a] - rank[b] })
	}
	return targets
}
