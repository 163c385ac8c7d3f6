package health

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// pool is what probes of one sort share: packets of this process's own, or programs.
type pool struct {
	lines   lines
	most    int // probes at the same time
	running int
	held    bool // a line waits until a probe has ended
}

// lineKey is what a line is of: a segment or, of programs, a service.
type lineKey struct {
	segment model.Segment
	service model.ServiceID
}

// line has the targets that count in one segment or, for programs, in one service. Probes under way are shared
// by lines and not by targets: a tenant with thousands of backends that do not answer, or a service with a
// program that hangs, delays its own probes only.
type line struct {
	lineKey
	in        *pool
	name      string // of the service, for programs
	place     int    // in order
	queue     queue
	targets   int
	running   int
	diagnoses int
	late      time.Duration // by how much a probe began too late for want of a place
	lateAt    time.Time
}

// lines are those of all segments with targets. They take turns.
type lines struct {
	of    map[lineKey]*line
	order []*line
	turn  int // the place of the one whose turn is next
}

// join counts one more target, and returns the line for it.
func (s *lines) join(of lineKey) *line {
	l := s.of[of]
	if l == nil {
		l = &line{lineKey: of, place: len(s.order)}
		s.of[of], s.order = l, append(s.order, l)
	}
	l.targets++
	return l
}

// keyOf is the line that a check counts in.
func keyOf(check *model.Check) lineKey {
	of := lineKey{segment: check.CountsIn()}
	if check.How.Kind == model.CheckExec {
		of.service = check.Target.Service
	}
	return of
}

// join counts one more target of a check.
func (c *Checker) join(check *model.Check) *line {
	in, of := &c.pool, keyOf(check)
	if check.How.Kind == model.CheckExec {
		in = &c.programs
		in.most = check.Programs.AtOnceOrDefault()
	}
	l := in.lines.join(of)
	l.in = in
	if in == &c.programs {
		l.name = check.Service
	}
	return l
}

// leave counts one target less.
func (l *line) leave() { l.in.lines.leave(l) }

// leave counts one target less. Probes that are under way count until they end.
func (s *lines) leave(l *line) {
	l.targets--
	s.close(l)
}

// close forgets a line with nothing in it.
func (s *lines) close(l *line) {
	if l.targets > 0 || l.running > 0 || l.diagnoses > 0 || s.of[l.lineKey] != l {
		return
	}
	delete(s.of, l.lineKey)
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

// Late is how late the probes of a segment begin, or the programs of a service, because as many are under way
// as it may have.
type Late struct {
	Segment model.Segment
	Service string // of programs
	By      time.Duration
}

// Late returns the segments and services whose probes began too late within the last minute, or should have begun.
func (c *Checker) Late() (found []Late) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, l := range slices.Concat(c.lines.order, c.programs.lines.order) {
		by := time.Duration(0)
		if now.Sub(l.lateAt) < ownEvery {
			by = l.late
		}
		if len(l.queue) > 0 {
			by = max(by, now.Sub(l.queue[0].due))
		}
		if by > lateBy {
			found = append(found, Late{l.segment, l.name, by})
		}
	}
	slices.SortFunc(found, func(a, b Late) int {
		return cmp.Or(a.Segment.Compare(b.Segment), strings.Compare(a.Service, b.Service))
	})
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
