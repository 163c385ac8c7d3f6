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
// the member with the largest part. Small weights cannot be divided: all are multiplied first,
// which moves no slot.
func scale(members []model.Member, log *model.Log) {
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
