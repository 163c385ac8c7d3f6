package history

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// Evidence is the reports of agents, and the observations of directors.
type Evidence interface {
	// Reported reports whether agents report connections of the service at all. If none does, the
	// clock alone decides.
	Reported(s *model.Service) bool
	// Needed returns those of a generation's kept slots in which connections may still need it,
	// because no newer generation names their backends there. The newer ones are in every row that
	// it is in. Only reports count that were taken when it no longer placed connections.
	Needed(s *model.Service, g *model.Generation, newer []model.Generation, at time.Time) *model.SlotSet
	// Guessed returns when directors last saw a living connection that none of them had remembered,
	// and that belongs to an older generation's owner; the zero time: directors do not look, or no
	// generation may wait for it.
	Guessed(s *model.Service) time.Time
}

// Held has the numbers of the generations that hold some slot: they still place new connections of
// these slots (maglev.Rows).
type Held map[uint64]bool

// Cause is why a generation left its log.
type Cause string

// The causes.
const (
	Drained  Cause = "drained"   // it has not placed a connection for the service's drain, and none is known
	Gone     Cause = "gone"      // none of its members is a backend any more
	Overdue  Cause = "max_drain" // at max-retention, although agents report connections of it, or are silent, or directors see some
	Repeated Cause = "repeated"  // a newer one has its ring, and there was no room
)

// Causes are all of them.
var Causes = []Cause{Drained, Gone, Overdue, Repeated}

// Departure is a generation that left its log.
type Departure struct {
	model.Generation
	Cause Cause
}

// Trim notes which members are gone and which slots no connection needs any more, and returns the
// log without the generations that are not needed, and those generations. The newest stays, and so
// does the newest that has members. Others leave
//
//   - at once, when none of their members is a backend any more;
//   - when they have not placed a connection for the service's drain;
//   - but if agents report connections of the service: from then on slot by slot, when the agents
//     of its owner and of its backup report no connection there, and all that is left at max-retention.
//     With UDP, directors send new flows to older owners, too, until a log keeps slots for what
//     agents report: so at first it keeps all, and the generation has placed flows until then;
//   - and not while directors see connections of the oldest (see sighting), up to max-retention.
//
// The passed log is not written to.
func Trim(log model.Log, s *model.Service, held Held, evidence Evidence, now time.Time) (trimmed model.Log, left []Departure) {
	now = stamp(now)
	trimmed.Steps, trimmed.Strained = log.Steps, log.Strained
	t := newTrimmer(s, evidence)
	t.sighting = newSighting(t, log, held, now)
	trimmed, left = t.trim(log, held, now)
	if t.spared && isFull(trimmed, s) {
		t = newTrimmer(s, evidence) // a generation that waits for room has waited for drain
		trimmed, left = t.trim(log, held, now)
	}
	return trimmed, left
}

func (t *trimmer) trim(log model.Log, held Held, now time.Time) (trimmed model.Log, left []Departure) {
	t.guesses = t.reported && t.service.Protocol.Datagrams() && Kept(log) == 0
	var replacing time.Time // when the current generation was replaced, by one that leaves
	for i, g := range log.Generations {
		if back := g.Since.Sub(now); back > 0 { // the clock was set back
			g.Since = now
			if !g.From.IsZero() {
				g.From = g.From.Add(-back)
			}
		}
		g.Held = earlier(g.Held, now)
		if held[g.Number] {
			g.Held = now
		}
		g.Gone = t.gone(&g)
		if cause := t.judge(&g, i, now); cause != "" {
			left = append(left, Departure{g, cause})
			if len(g.Members) > 0 {
				replacing = g.Places()
			}
			continue
		}
		if n := len(trimmed.Generations); n > 0 && !replacing.IsZero() && !now.Before(trimmed.Generations[n-1].Places()) {
			trimmed.Generations[n-1].From = replacing
		}
		replacing = time.Time{}
		if held[g.Number] {
			t.newer = nil // a row that is held here names no backend of newer generations
		}
		t.newer = append(t.newer, g)
		trimmed.Generations = append(trimmed.Generations, g)
	}
	return trimmed, left
}

// Due returns when Trim may next take a generation or its first slots out, or the zero time. Slots
// that later reports free are due when the reports come, and what directors see meanwhile may delay
// it.
func Due(log model.Log, s *model.Service, held Held, evidence Evidence, now time.Time) time.Time {
	t := newTrimmer(s, evidence)
	if len(log.Generations) > 1 && !isFull(log, s) {
		t.sighting = newSighting(t, log, held, now)
	}
	var due time.Time
	for i := range log.Generations {
		g := &log.Generations[i]
		stay := t.next(g)
		at := stay.drained
		switch {
		case i == 0 || stay.current:
			continue
		case !stay.alive:
			at = g.Since
		case t.reported && g.Kept != nil:
			at = stay.overdue
		default:
			at = later(at, earlier(t.sighting.until(i), stay.overdue))
		}
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

// worthwhile is the least share of a generation's slots, one in that many, that must leave at once:
// every write of a log makes all directors compute rows again, so it is written a bounded number of
// times for each generation.
const worthwhile = 16

// Shrunk reports whether a log that Trim and Advance have made from another one is worth writing
// before the next Due time: its generations have changed, or one keeps notably fewer slots. If
// slots are held, they may wait for any slot.
func Shrunk(before, after model.Log, held Held) bool {
	if len(before.Generations) != len(after.Generations) {
		return true
	}
	for i := range after.Generations {
		was, is := &before.Generations[i], &after.Generations[i]
		if was.Number != is.Number {
			return true
		}
		had, has := keeps(was), keeps(is)
		if less := had - has; less < 0 || less > 0 && (len(held) > 0 || less*worthwhile >= had) {
			return true
		}
	}
	return false
}

// Kept returns how many slots of older generations a log keeps for the connections that
// agents report.
func Kept(log model.Log) int {
	n := 0
	for i := range log.Generations {
		if g := &log.Generations[i]; g.Kept != nil {
			n += g.Kept.Count()
		}
	}
	return n
}

func keeps(g *model.Generation) int {
	if g.Kept == nil {
		return int(g.Slots)
	}
	return g.Kept.Count()
}

func everySlot(g *model.Generation) *model.SlotSet {
	all := model.NewSlotSet(int(g.Slots))
	for slot := range int(g.Slots) {
		all.Add(slot)
	}
	return all
}

// trimmer goes through a log from the newest generation on.
type trimmer struct {
	service  *model.Service
	evidence Evidence
	reported bool
	guesses  bool // older owners get new flows, too
	backends map[netip.AddrPort]bool
	newer    []model.Generation // generations that stay, and are in every row that the next one is in
	replaced time.Time          // when the newer generations replaced the next one
	members  bool               // one of the newer generations has members that are not gone

	sighting sighting
	spared   bool // some generation stays because of what directors see
}

func newTrimmer(s *model.Service, evidence Evidence) *trimmer {
	t := &trimmer{service: s, evidence: evidence, backends: make(map[netip.AddrPort]bool, len(s.Backends))}
	for _, b := range s.Backends {
		t.backends[b.Endpoint()] = true
	}
	t.reported = evidence != nil && evidence.Reported(s)
	return t
}

// stay is how long a generation stays.
type stay struct {
	alive   bool // some member is a backend, and always was
	current bool // it places connections, and stays
	drained time.Time
	overdue time.Time
}

// next returns how long the next generation stays.
func (t *trimmer) next(g *model.Generation) stay {
	s := stay{alive: t.alive(g)}
	s.current = s.alive && !t.members
	replaced := t.replaced
	placed := replaced
	if placed.Before(g.Held) {
		placed = g.Held
	}
	s.drained = placed.Add(t.service.RetentionOrDefault())
	s.overdue = replaced.Add(t.service.MaxRetentionOrDefault())
	if s.overdue.Before(s.drained) {
		s.overdue = s.drained
	}
	if len(g.Members) > 0 {
		t.replaced = g.Places()
	}
	t.members = t.members || s.alive
	return s
}

// judge returns why the next generation, which has this position in the log, leaves, or "".
// Of one that stays it notes the slots that are still needed.
func (t *trimmer) judge(g *model.Generation, number int, now time.Time) Cause {
	stay := t.next(g)
	switch {
	case number == 0 || stay.current:
		g.Kept = nil
		return ""
	case !stay.alive:
		return Gone
	case now.Before(stay.drained):
		return ""
	case now.Before(t.sighting.until(number)):
		if !now.Before(stay.overdue) {
			return Overdue
		}
		t.spared = true
		return ""
	case !t.reported:
		return Drained
	case t.guesses && now.Before(stay.overdue):
		g.Kept, g.Held = everySlot(g), now
		return ""
	}
	needed := t.evidence.Needed(t.service, g, t.newer, stay.drained)
	switch {
	case needed.Count() == 0:
		return Drained
	case !now.Before(stay.overdue):
		return Overdue
	}
	g.Kept = needed
	return ""
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

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// sighting says which generations stay because directors see connections of them, without agents. A
// connection that no director remembers was opened in a slot without a list: all generations that
// the log had at that moment named the same owner there, or one that has left. As long as one of
// them stays, so does the owner in the slot's row, and later generations are younger. So it is
// enough that the oldest stays and, after those that have lost members, the oldest that has all of
// its members. Connections that are opened where rows name further backends are remembered.
type sighting struct {
	from int       // position in the log of the newest generation that stays
	end  time.Time // they stay until then; zero: directors have seen no such connection
}

func newSighting(t *trimmer, log model.Log, held Held, now time.Time) sighting {
	if t.evidence == nil || len(log.Generations) < 2 {
		return sighting{}
	}
	last := t.evidence.Guessed(t.service)
	if last.IsZero() {
		return sighting{}
	}
	seen := sighting{from: 1, end: last.Add(t.service.RetentionOrDefault())}
	crowded := isCrowded(log, held, now)
	for i := len(log.Generations) - 1; i > 0; i-- {
		oldest := &log.Generations[i]
		if t.alive(oldest) && (crowded || len(t.gone(oldest)) == 0 && oldest.Kept == nil) {
			seen.from = i
			break
		}
	}
	return seen
}

// until returns the time until which the generation at a position of the log stays.
func (s *sighting) until(position int) time.Time {
	if position < s.from {
		return time.Time{}
	}
	return s.end
}

// isCrowded reports whether slots are held because their rows are full. A generation that places
// connections until the notice of newer ones is over also counts as holding slots.
func isCrowded(log model.Log, held Held, now time.Time) bool {
	places := false
	for i := range log.Generations {
		g := &log.Generations[i]
		if places && held[g.Number] {
			return true
		}
		places = places || len(g.Members) > 0 && !now.Before(g.Places())
	}
	return false
}
