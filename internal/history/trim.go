package history

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// Evidence says, by number, which generations the agents report connections of. A
// generation that is not in it is needed by nobody, as far as anybody knows.
type Evidence map[uint64]bool

// Held has the numbers of the generations that some slot is held at: new connections
// of these slots are still placed by them (maglev.Rows).
type Held map[uint64]bool

// Cause is why a generation left its log.
type Cause string

// The causes.
const (
	Drained  Cause = "drained"   // it has not placed a connection for the service's drain
	Gone     Cause = "gone"      // none of its members is a backend any more
	Overdue  Cause = "max_drain" // at max-drain, although agents report connections of it
	Repeated Cause = "repeated"  // a newer one has its ring, and there was no room
)

// Causes are all of them.
var Causes = []Cause{Drained, Gone, Overdue, Repeated}

// Departure is a generation that left its log.
type Departure struct {
	model.Generation
	Cause Cause
}

// Trim notes which members are gone, and returns the log without the generations that
// nobody needs any more, and these. The newest stays, and so does the newest that has
// members. Others leave
//
//   - at once, when none of their members is a backend any more;
//   - when they have not placed a connection for the service's drain;
//   - of a service whose backends have agents, and while these report connections of
//     it, only at max-drain.
//
// The log that is passed is not written to.
func Trim(log model.Log, s *model.Service, held Held, evidence Evidence, now time.Time) (trimmed model.Log, left []Departure) {
	now = stamp(now)
	t := newTrimmer(s, evidence)
	for i, g := range log.Generations {
		g.Since = earlier(g.Since, now) // the clock was set back
		g.Held = earlier(g.Held, now)
		if held[g.Number] {
			g.Held = now
		}
		g.Gone = t.gone(&g)
		needed, leaves := t.next(&g)
		switch {
		case i == 0 || leaves.IsZero() || now.Before(leaves):
			trimmed.Generations = append(trimmed.Generations, g)
		case needed:
			left = append(left, Departure{g, Overdue})
		case !t.alive(&g):
			left = append(left, Departure{g, Gone})
		default:
			left = append(left, Departure{g, Drained})
		}
	}
	return trimmed, left
}

// Due returns when Trim may next take a generation out, or the zero time.
func Due(log model.Log, s *model.Service, evidence Evidence) time.Time {
	t := newTrimmer(s, evidence)
	var due time.Time
	for i := range log.Generations {
		_, leaves := t.next(&log.Generations[i])
		if i > 0 && !leaves.IsZero() && (due.IsZero() || leaves.Before(due)) {
			due = leaves
		}
	}
	return due
}

// trimmer goes through a log from the newest generation on.
type trimmer struct {
	service  *model.Service
	evidence Evidence
	backends map[netip.AddrPort]bool
	agents   bool
	replaced time.Time // when the newer generations replaced the next one
	members  bool      // one of the newer generations has members
}

func newTrimmer(s *model.Service, evidence Evidence) *trimmer {
	t := &trimmer{service: s, evidence: evidence, backends: make(map[netip.AddrPort]bool, len(s.Backends))}
	for _, b := range s.Backends {
		t.backends[b.Endpoint()] = true
		t.agents = t.agents || b.ModeIn(*s) == model.GUE
	}
	return t
}

// next returns whether agents need the next generation, and when it leaves: never
// (the zero time), or at a time that may have been long ago.
func (t *trimmer) next(g *model.Generation) (needed bool, leaves time.Time) {
	replaced, current := t.replaced, !t.members
	if len(g.Members) > 0 {
		t.replaced, t.members = g.Since, true
	}
	if !t.alive(g) {
		return false, g.Since
	}
	if current {
		return false, time.Time{}
	}
	if needed = t.agents && t.evidence[g.Number]; needed {
		return true, replaced.Add(t.service.MaxDrainOrDefault())
	}
	if replaced.Before(g.Held) {
		replaced = g.Held
	}
	return false, replaced.Add(t.service.DrainOrDefault())
}

// alive reports whether some member of the generation is a backend, and always was.
func (t *trimmer) alive(g *model.Generation) bool {
	for _, m := range g.Members {
		if t.backends[m.Backend] && !slices.Contains(g.Gone, m.Backend) {
			return true
		}
	}
	return false
}

// gone returns the members that are no backends, or once were not.
func (t *trimmer) gone(g *model.Generation) []netip.AddrPort {
	var gone []netip.AddrPort
	for _, m := range g.Members {
		if !t.backends[m.Backend] || slices.Contains(g.Gone, m.Backend) {
			gone = append(gone, m.Backend)
		}
	}
	return gone
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
