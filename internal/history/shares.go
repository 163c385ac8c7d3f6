package history

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// Ramp returns the steps that follow those of a log, and when they may next change if nothing else
// is found: the zero time is never.
//
//   - A backend that is new to a service that has others takes the first step. So does one that was
//     down for the time of a step: before that it has kept its share and its caches. It owns no
//     more slots when it comes back, and by then has lost only slots whose connections went to
//     others all the while.
//   - A backend that is up takes the next step when it has been up, and at the last step, for that
//     time.
//   - No share shrinks while so few backends are up that the checks may be wrong: all are used
//     then, and those that are down must not leave their shares to the few.
//
// Steps are taken at multiples of their time, by all of a service's backends together: a rack that
// comes back makes about as many generations as one backend.
func Ramp(log model.Log, s *model.Service, found func(netip.AddrPort) model.Found, now time.Time) (steps []model.Step, next time.Time) {
	if !s.StartsSlowly() {
		return nil, next
	}
	r := newRamp(log, s, found, stamp(now))
	for i := range s.Backends {
		if b := &s.Backends[i]; owns(b) {
			r.backend(b)
		}
	}
	slices.SortFunc(r.steps, func(a, b model.Step) int { return a.Backend.Compare(b.Backend) })
	return r.steps, r.pace.next
}

// ramp goes through a service's backends.
type ramp struct {
	pace
	found  func(netip.AddrPort) model.Found
	panics bool
	before map[netip.AddrPort]model.Step
	owned  map[netip.AddrPort]bool // had a share in the newest generation; nil: none had

	steps []model.Step
}

func newRamp(log model.Log, s *model.Service, found func(netip.AddrPort) model.Found, now time.Time) *ramp {
	r := &ramp{pace: pace{now: now, each: time.Duration(s.Health.SlowStart) / model.StartSteps}, found: found, panics: tooFew(s, found), before: map[netip.AddrPort]model.Step{}}
	for _, step := range log.Steps {
		step.Since = r.known(step.Since)
		r.before[step.Backend] = step
	}
	if len(log.Generations) > 0 && len(log.Generations[0].Members) > 0 {
		r.owned = map[netip.AddrPort]bool{}
		for _, m := range log.Generations[0].Members {
			r.owned[m.Backend] = true
		}
	}
	return r
}

func tooFew(s *model.Service, found func(netip.AddrPort) model.Found) bool {
	up, down := 0, 0
	for i := range s.Backends {
		if b := &s.Backends[i]; owns(b) && b.State == model.Active {
			switch found(b.Endpoint()).State {
			case model.HealthUp:
				up++
			case model.HealthDown:
				down++
			}
		}
	}
	return s.TooFew(up, down)
}

// backend adds the step that a backend is at, if any.
func (r *ramp) backend(b *model.Backend) {
	step, starts := r.before[b.Endpoint()]
	found := r.found(b.Endpoint())
	since := r.now.Add(-found.For)
	switch {
	case !starts && r.owned != nil && !r.owned[b.Endpoint()], b.State == model.Down && step.Number != 1 && !r.panics:
		r.steps = append(r.steps, model.Step{Backend: b.Endpoint(), Number: 1, Since: r.now})
		return
	case found.State == model.HealthDown && step.Number != 1 && !r.panics && r.due(since):
		step, starts = model.Step{Backend: b.Endpoint(), Number: 1, Since: r.last()}, true
	case starts && found.State == model.HealthUp && b.State == model.Active && r.due(latest(step.Since, since)):
		if step.Number++; step.Number >= model.StartSteps {
			return
		}
		step.Since = r.last()
		r.due(step.Since)
	}
	if starts {
		r.steps = append(r.steps, step)
	}
}

// scale gives members that start slowly, or are strained, their part of their weights, relative to
// the member of their tier with the largest part: shares are those of a tier's new connections.
func scale(members []model.Member, log *model.Log) {
	tiers := uint8(0)
	for i := range members {
		tiers = max(tiers, members[i].Tier)
	}
	if tiers == 0 {
		scaleTier(members, log)
		return
	}
	for tier := range tiers + 1 {
		var in []model.Member
		for _, m := range members {
			if m.Tier == tier {
				in = append(in, m)
			}
		}
		scaleTier(in, log)
		for i := range members {
			if members[i].Tier == tier {
				members[i], in = in[0], in[1:]
			}
		}
	}
}

// scaleTier does so for the members of a tier. Small weights cannot be divided: all are multiplied first,
// which moves no slot.
func scaleTier(members []model.Member, log *model.Log) {
	shares := make([]uint32, len(members))
	most, least, heaviest := uint32(0), uint32(model.WholeShare), uint16(0)
	for i, m := range members {
		shares[i] = log.Share(m.Backend)
		most, least, heaviest = max(most, shares[i]), min(least, shares[i]), max(heaviest, m.Weight)
	}
	if least == most {
		return
	}
	factor := uint32(model.StartSteps)
	if factor*uint32(heaviest) > 1<<16-1 {
		factor = 1
	}
	for i := range members {
		members[i].Weight = uint16(max(1, factor*uint32(members[i].Weight)*shares[i]/most))
	}
}

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
