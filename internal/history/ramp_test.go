package history

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// ramping plays what becomes of a service whose backends start slowly: in 8 s, a step is a
// second.
type ramping struct {
	t     *testing.T
	s     *model.Service
	log   model.Log
	now   time.Duration
	state map[netip.AddrPort]model.HealthState
	since map[netip.AddrPort]time.Duration
}

func newRamping(t *testing.T, backends int) *ramping {
	r := &ramping{t: t, s: service(backends), state: map[netip.AddrPort]model.HealthState{}, since: map[netip.AddrPort]time.Duration{}}
	percent := uint8(50)
	r.s.Health = &model.HealthCheck{Kind: model.CheckTCP, SlowStart: model.Duration(8 * time.Second), Panic: &percent}
	for i := range backends {
		r.find(i, model.HealthUp)
	}
	r.pass(0)
	return r
}

func (r *ramping) find(i int, state model.HealthState) {
	b := r.s.Backends[i].Endpoint()
	r.state[b], r.since[b] = state, r.now
}

func (r *ramping) found(b netip.AddrPort) model.Found {
	return model.Found{State: r.state[b], For: r.now - r.since[b]}
}

// pass does what is due until so long has passed, and at its end what a change wants.
func (r *ramping) pass(d time.Duration) {
	r.t.Helper()
	end := r.now + d
	for {
		steps, next := Ramp(r.log, r.s, r.found, start.Add(r.now))
		if !slices.Equal(steps, r.log.Steps) || r.now == end {
			r.log.Steps = steps
			r.log = Advance(r.log, r.s, start.Add(r.now))
			_, next = Ramp(r.log, r.s, r.found, start.Add(r.now))
		}
		switch {
		case r.now == end:
			return
		case next.IsZero() || next.After(start.Add(end)):
			r.now = end
		case !next.After(start.Add(r.now)):
			r.t.Fatalf("at %v it is due at %v", r.now, next)
		default:
			r.now = next.Sub(start)
		}
	}
}

// want wants the weights of the newest generation, and how many generations there are.
func (r *ramping) want(what, weights string, generations int) {
	r.t.Helper()
	var got []string
	for _, m := range r.log.Generations[0].Members {
		got = append(got, fmt.Sprint(m.Weight))
	}
	if text := strings.Join(got, " "); text != weights || len(r.log.Generations) != generations {
		r.t.Errorf("%s, after %v, the weights are %s in generation %d, want %s in %d", what, r.now, text, len(r.log.Generations), weights, generations)
	}
}

func TestRampAfterAFall(t *testing.T) {
	r := newRamping(t, 2)
	r.pass(10*time.Second + 300*time.Millisecond)
	r.want("all are up", "100 100", 1)
	r.find(0, model.HealthDown)
	r.pass(time.Second)
	r.want("down for a step", "100 100", 1)
	r.pass(time.Second)
	r.want("down for longer", "100 800", 2)
	r.pass(time.Hour)
	r.want("still down", "100 800", 2)
	r.find(0, model.HealthUp)
	r.pass(time.Second)
	r.want("up for a step", "100 800", 2)
	for i, weights := range []string{"200 800", "300 800", "400 800", "500 800", "600 800", "700 800", "100 100"} {
		r.pass(time.Second)
		r.want("up", weights, 3+i)
	}
	r.pass(time.Hour)
	r.want("up for long", "100 100", 9)
	if len(r.log.Steps) > 0 {
		t.Errorf("there are the steps %v, want none", r.log.Steps)
	}
}

func TestRampOfWhoFallsAgain(t *testing.T) {
	r := newRamping(t, 2)
	r.find(0, model.HealthDown)
	r.pass(900 * time.Millisecond)
	r.find(0, model.HealthUp)
	r.pass(time.Minute)
	r.want("down for a moment", "100 100", 1)
	r.find(0, model.HealthDown)
	r.pass(2 * time.Second)
	r.find(0, model.HealthUp)
	r.pass(3 * time.Second)
	r.want("up for three steps", "300 800", 4)
	r.find(0, model.HealthDown)
	r.pass(900 * time.Millisecond)
	r.want("down for less than a step", "300 800", 4)
	r.pass(1100 * time.Millisecond)
	r.want("down for longer", "100 800", 5)
	r.find(0, model.HealthUnknown)
	r.pass(time.Minute)
	r.want("nothing is known", "100 800", 5)
}

// A backend that comes and goes with others makes no more generations than they do.
func TestRampOfMany(t *testing.T) {
	r := newRamping(t, 6)
	for _, i := range []int{0, 1, 2} {
		r.pass(250 * time.Millisecond)
		r.find(i, model.HealthDown)
	}
	r.pass(time.Minute)
	r.want("three are down", "100 100 100 800 800 800", 2)
	for _, i := range []int{2, 1, 0} {
		r.pass(50 * time.Millisecond)
		r.find(i, model.HealthUp)
	}
	r.pass(4 * time.Second)
	r.want("on their way", "400 400 400 800 800 800", 5)
	r.pass(time.Minute)
	r.want("at the end", "100 100 100 100 100 100", 9)
}

func TestRampOfNewBackends(t *testing.T) {
	r := newRamping(t, 0)
	r.s.Backends = service(2).Backends
	r.pass(0)
	r.want("the first ones", "100 100", 2)
	r.s.Backends = service(3).Backends
	r.pass(0)
	r.want("a new one", "800 800 100", 3)
	r.pass(time.Minute)
	r.want("nothing is known of it", "800 800 100", 3)
	r.find(2, model.HealthUp)
	r.pass(2 * time.Second)
	r.want("it is up", "800 800 300", 5)
	r.s.Backends[2].State = model.Draining
	r.pass(0)
	r.want("it drains", "100 100", 6)
	r.s.Backends[2].State = model.Active
	r.pass(0)
	r.want("and comes back", "800 800 100", 7)
	r.s.Backends = r.s.Backends[:2]
	r.pass(0)
	r.want("it goes", "100 100", 8)
	r.s.Backends = service(4).Backends[2:]
	r.pass(0)
	r.want("all are new", "100 100", 9)
	r.find(0, model.HealthUnknown)
	r.find(1, model.HealthUp)
	r.pass(3 * time.Second)
	r.want("one is up", "200 800", 12)
}

func TestRampIsNotForAll(t *testing.T) {
	r := newRamping(t, 4)
	r.find(0, model.HealthDown)
	r.find(1, model.HealthDown)
	r.find(2, model.HealthDown)
	r.pass(time.Minute)
	r.want("too few are up", "100 100 100 100", 1)
	r.find(2, model.HealthUp)
	r.pass(time.Minute)
	r.want("enough are up", "100 100 800 800", 2)
	r.find(2, model.HealthDown)
	r.pass(time.Minute)
	r.want("too few are up again", "100 100 800 800", 2)
	r.s.Health.Kind = model.CheckNone
	r.pass(0)
	r.want("the check is switched off", "100 100 100 100", 3)
}

func TestRampOfWhoIsDownByTheConfiguration(t *testing.T) {
	r := newRamping(t, 2)
	r.s.Backends[0].State = model.Down
	r.find(0, model.HealthUnknown)
	r.pass(0)
	r.want("down", "100 800", 2)
	r.pass(time.Minute)
	r.want("still down", "100 800", 2)
	r.s.Backends[0].State = model.Active
	r.find(0, model.HealthUp)
	r.pass(2 * time.Second)
	r.want("active", "300 800", 4)
}

func TestRampOfWeights(t *testing.T) {
	for _, test := range []struct {
		weights [2]uint16
		want    string
	}{{[2]uint16{1, 1}, "1 8"}, {[2]uint16{3, 1}, "3 8"}, {[2]uint16{8191, 5}, "8191 40"}, {[2]uint16{65535, 65535}, "8191 65535"}, {[2]uint16{1, 65535}, "1 65535"}} {
		r := newRamping(t, 2)
		r.s.Backends[0].Weight, r.s.Backends[1].Weight = test.weights[0], test.weights[1]
		r.pass(0)
		r.find(0, model.HealthDown)
		r.pass(time.Minute)
		r.want("down", test.want, len(r.log.Generations))
	}
}

// A clock that is set back neither stops a backend nor makes it take a step again and again.
func TestRampWithTheClockSetBack(t *testing.T) {
	r := newRamping(t, 2)
	r.find(0, model.HealthDown)
	r.pass(2 * time.Hour)
	r.find(0, model.HealthUp)
	r.pass(3 * time.Second)
	r.want("up", "400 800", 5)
	back := start.Add(r.now - time.Hour)
	steps, _ := Ramp(r.log, r.s, r.found, back)
	if len(steps) != 1 || steps[0].Number != 4 {
		t.Fatalf("with the clock set back the steps are %v, want the fourth", steps)
	}
	r.log.Steps = steps
	if again, next := Ramp(r.log, r.s, r.found, back); !slices.Equal(again, steps) || next.Sub(back) > 2*time.Second {
		t.Errorf("with the clock set back the steps become %v, and others at %v", again, next)
	}
	if next, _ := Ramp(r.log, r.s, r.found, back.Add(2*time.Second)); next[0].Number != 5 {
		t.Errorf("two seconds later the steps are %v, want the fifth", next)
	}
	late := r.log.Steps[0]
	late.Since = back.Add(4 * time.Second) // by another director, whose clock is ahead
	r.log.Steps = []model.Step{late}
	if steps, _ := Ramp(r.log, r.s, r.found, back); steps[0] != late {
		t.Errorf("a step of another clock becomes %v, want %v", steps[0], late)
	}
}
