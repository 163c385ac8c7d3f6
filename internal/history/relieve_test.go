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

// relieving lets time pass, in which agents report twice a second what the test says, and a step
// is a second.
type relieving struct {
	t       *testing.T
	s       *model.Service
	log     model.Log
	now     time.Duration
	signals map[netip.AddrPort]model.Signal
	silent  map[netip.AddrPort]bool
	taken   map[netip.AddrPort]time.Time
	down    map[netip.AddrPort]bool
}

func newRelieving(t *testing.T, backends int) *relieving {
	r := &relieving{t: t, s: service(backends), signals: map[netip.AddrPort]model.Signal{}, silent: map[netip.AddrPort]bool{},
		taken: map[netip.AddrPort]time.Time{}, down: map[netip.AddrPort]bool{}}
	percent, refused, overflows := uint8(50), uint32(10), uint32(4)
	r.s.Health = &model.HealthCheck{Kind: model.CheckTCP, Panic: &percent,
		Passive: &model.Passive{Refused: &refused, Overflows: &overflows, Floor: 50, Pace: model.Duration(time.Second)}}
	r.pass(0)
	return r
}

func (r *relieving) say(i int, refused, overflows float64) {
	r.signals[r.s.Backends[i].Endpoint()] = model.Signal{Refused: refused, Overflows: overflows}
}

func (r *relieving) found(b netip.AddrPort) model.Found {
	if r.down[b] {
		return model.Found{State: model.HealthDown}
	}
	return model.Found{State: model.HealthUp}
}

func (r *relieving) heard(b netip.AddrPort) model.Heard {
	return model.Heard{Signal: r.signals[b], Taken: r.taken[b]}
}

func (r *relieving) relieve() ([]model.Strain, time.Time) {
	return Relieve(r.log, r.s, r.found, r.heard, start.Add(r.now))
}

// pass reports, and does what is due, until so long has passed.
func (r *relieving) pass(d time.Duration) {
	r.t.Helper()
	const tick = 500 * time.Millisecond
	for end := r.now + d; ; r.now += tick {
		for i := range r.s.Backends {
			if b := r.s.Backends[i].Endpoint(); !r.silent[b] {
				r.taken[b] = start.Add(r.now)
			}
		}
		strained, next := r.relieve()
		if !next.IsZero() && !next.After(start.Add(r.now)) {
			r.t.Fatalf("at %v it is due at %v", r.now, next)
		}
		r.log.Strained = strained
		r.log = Advance(r.log, r.s, start.Add(r.now))
		if again, _ := r.relieve(); !slices.Equal(again, strained) {
			r.t.Fatalf("at %v the strain is %v, and at once %v", r.now, strained, again)
		}
		if r.now >= end {
			return
		}
	}
}

func (r *relieving) want(what, weights string, generations int) {
	r.t.Helper()
	var got []string
	for _, m := range r.log.Generations[0].Members {
		got = append(got, fmt.Sprint(m.Weight))
	}
	if text := strings.Join(got, " "); text != weights || len(r.log.Generations) != generations {
		r.t.Errorf("%s, after %v, the weights are %s in generation %d, want %s in %d", what, r.now, text, len(r.log.Generations), weights, generations)
	}
}

func TestRelieve(t *testing.T) {
	for name, over := range map[string][2]float64{"refused": {10, 0}, "no room": {0, 4}, "both": {100, 100}} {
		t.Run(name, func(t *testing.T) {
			r := newRelieving(t, 3)
			r.pass(10 * time.Second)
			r.want("calm", "100 100 100", 1)
			r.say(1, 9.9, 3.9)
			r.pass(10 * time.Second)
			r.want("nearly too much", "100 100 100", 1)
			r.say(1, over[0], over[1])
			r.pass(0)
			r.want("too much", "800 700 800", 2)
			for i, weights := range []string{"800 600 800", "800 500 800", "800 400 800"} {
				r.pass(time.Second)
				r.want("still too much", weights, 3+i)
			}
			r.pass(time.Minute)
			r.want("at the floor", "800 400 800", 5)
			r.say(1, 5, 2)
			r.pass(time.Minute)
			r.want("half of too much", "800 400 800", 5)
			r.say(1, 4.9, 1.9)
			for i, weights := range []string{"800 500 800", "800 600 800", "800 700 800", "100 100 100"} {
				r.pass(time.Duration(min(i, 1)) * time.Second)
				r.want("calm", weights, 6+i)
			}
			r.pass(time.Minute)
			r.want("calm for long", "100 100 100", 9)
			if len(r.log.Strained) > 0 {
				t.Errorf("calm, there is the strain %v", r.log.Strained)
			}
		})
	}
}

// Backends that are strained together make no more generations than one, and when all are
// strained, none has less than the others.
func TestRelieveMany(t *testing.T) {
	r := newRelieving(t, 3)
	for i := range 3 {
		r.say(i, 0, 50)
		r.pass(500 * time.Millisecond)
	}
	r.pass(time.Minute)
	r.want("all are strained", "100 100 100", 7)
	for i := range 3 {
		r.say(i, 0, 0)
	}
	r.pass(time.Minute)
	r.want("calm", "100 100 100", 7)
}

func TestReliefIsNotForAll(t *testing.T) {
	r := newRelieving(t, 2)
	r.say(0, 50, 50)
	r.down[r.s.Backends[1].Endpoint()], r.down[r.s.Backends[0].Endpoint()] = true, true
	r.pass(time.Minute)
	r.want("too few are up", "100 100", 1)
	clear(r.down)
	r.pass(time.Second)
	r.want("they are up", "600 800", 3)
	r.s.Health.Passive = nil
	r.pass(0)
	r.want("switched off", "100 100", 4)
}

// An agent that says nothing any more does not hold a backend down.
func TestReliefOfTheSilent(t *testing.T) {
	r := newRelieving(t, 2)
	r.say(0, 50, 0)
	r.pass(time.Minute)
	r.want("strained", "400 800", 5)
	r.silent[r.s.Backends[0].Endpoint()] = true
	r.pass(59 * time.Second)
	r.want("silent", "400 800", 5)
	if _, next := r.relieve(); next.Sub(start.Add(r.now)) > time.Second {
		t.Errorf("silent, it is due at %v, want when the report is too old", next)
	}
	r.pass(10 * time.Second)
	r.want("silent for long", "100 100", 9)
}

// A step follows a report that can know of the step before.
func TestReliefWaitsForReports(t *testing.T) {
	r := newRelieving(t, 2)
	r.s.Health.Passive.Pace = model.Duration(20 * time.Second)
	r.say(0, 50, 0)
	r.pass(6 * time.Second)
	r.want("strained", "700 800", 2)
	r.silent[r.s.Backends[0].Endpoint()] = true
	r.pass(20 * time.Second)
	r.want("by a report after the step", "600 800", 3)
	r.pass(20 * time.Second)
	r.want("without another one", "600 800", 3)
}

// Both factors of a share: a backend that starts slowly may be strained, too.
func TestStrainDuringASlowStart(t *testing.T) {
	r := newRelieving(t, 2)
	r.s.Health.SlowStart = model.Duration(time.Hour)
	r.log.Steps = []model.Step{{Backend: r.s.Backends[0].Endpoint(), Number: 4, Since: start}}
	r.say(0, 50, 0)
	r.say(1, 50, 0)
	r.pass(4 * time.Second)
	r.want("half of a half beside a half", "400 800", len(r.log.Generations))
	r.say(1, 0, 0)
	r.pass(4 * time.Second)
	r.want("half of a half beside the whole", "200 800", len(r.log.Generations))
}

func TestLeastParts(t *testing.T) {
	for floor, want := range map[uint8]uint8{1: 1, 12: 1, 13: 2, 50: 4, 51: 5, 87: 7, 88: 8, 99: 8} {
		if got := (&model.Passive{Floor: floor}).LeastParts(); got != want {
			t.Errorf("with a floor of %d %% a backend keeps %d parts, want %d", floor, got, want)
		}
	}
}
