package history

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// Silence is the time without a report after which an agent's signs of strain no longer count.
const Silence = time.Minute

// Relieve returns the strained backends that follow those of a log, by their agents' last reports,
// and when that may next change if nothing else is reported: the zero time is never.
//
//   - A backend whose agent reports too much strain of some kind keeps one part less of its share,
//     down to the service's floor: strain does not take a backend out, only checks do.
//   - A backend whose agent reports less than half of that, or nothing, gets a part back.
//   - A part is only taken after a report that is younger than the last step: it must have seen the
//     effect of that step. No share shrinks while so few are up that all are used.
//
// The first step is taken at once, and others at multiples of the pace from then on, by all of a
// service's backends together: many backends make hardly more generations than one.
func Relieve(log model.Log, s *model.Service, found func(netip.AddrPort) model.Found, heard func(netip.AddrPort) model.Heard, now time.Time) (strained []model.Strain, next time.Time) {
	if !s.Relieves() {
		return nil, next
	}
	r := relief{Passive: s.Health.Passive, steps: pace{now: stamp(now), each: time.Duration(s.Health.Passive.Pace)}, panics: tooFew(s, found)}
	before := map[netip.AddrPort]model.Strain{}
	for _, b := range log.Strained {
		b.Since = r.steps.known(b.Since)
		before[b.Backend], r.last = b, latest(r.last, b.Since)
	}
	for i := range s.Backends {
		b := &s.Backends[i]
		if !owns(b) {
			continue
		}
		is, was := before[b.Endpoint()]
		if !was {
			is = model.Strain{Backend: b.Endpoint(), Parts: model.ShareParts}
		}
		if is = r.step(is, heard(b.Endpoint())); is.Parts < model.ShareParts {
			strained = append(strained, is)
		}
	}
	slices.SortFunc(strained, func(a, b model.Strain) int { return a.Backend.Compare(b.Backend) })
	return strained, r.steps.next
}

// relief goes through a service's backends.
type relief struct {
	*model.Passive
	steps  pace
	last   time.Time // when one of the service's backends took a step
	panics bool
}

// step returns what a backend keeps next, by what it kept and what is reported about it.
func (r *relief) step(b model.Strain, last model.Heard) model.Strain {
	stale := !last.Taken.Add(Silence).After(r.steps.now)
	switch {
	case !stale && r.Strains(last.Signal):
		seen := last.Taken.Add(mostAhead).After(b.Since)
		if b.Parts > r.LeastParts() && seen && !r.panics && r.steps.due(r.last) {
			b.Parts, b.Since = b.Parts-1, r.steps.last()
			r.steps.due(b.Since)
		}
		r.steps.note(last.Taken.Add(Silence))
	case b.Parts < model.ShareParts && (stale || r.Calms(last.Signal)):
		if r.steps.due(r.last) {
			b.Parts, b.Since = b.Parts+1, r.steps.last()
			r.steps.due(b.Since)
		}
	case b.Parts < model.ShareParts:
		r.steps.note(last.Taken.Add(Silence))
	}
	return b
}
