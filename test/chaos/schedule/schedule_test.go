package schedule

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

func options(seed uint64) Options {
	return Options{Seed: seed, Duration: 2 * time.Minute, Directors: 4, Backends: 12, Members: 3}
}

func TestSameSeedSameSchedule(t *testing.T) {
	if a, b := Make(options(1)), Make(options(1)); !reflect.DeepEqual(a, b) {
		t.Error("one seed made two schedules")
	}
	if a, b := Make(options(1)), Make(options(2)); reflect.DeepEqual(a, b) {
		t.Error("two seeds made one schedule")
	}
}

// Two minutes of any seed have what a run must have: a hundred events, twenty of them double
// changes. Every kind happens in some of a few seeds.
func TestEnoughHappens(t *testing.T) {
	kinds := map[Kind]int{}
	for seed := range uint64(50) {
		for _, directors := range []int{2, 3, 4} {
			o := options(seed)
			o.Directors = directors
			events := Make(o)
			pairs := 0
			for i, e := range events {
				kinds[e.Kind]++
				if i > 0 && e.At < events[i-1].At {
					t.Fatalf("seed %d: %s at %s comes after %s at %s", seed, e, e.At, events[i-1], events[i-1].At)
				}
				if e.Double && e.Kind.OfDirectors() {
					pairs++
				}
			}
			if len(events) < 100 || pairs < 22 {
				t.Errorf("seed %d with %d directors: %d events and %d double changes in two minutes, want 100 and 22", seed, directors, len(events), pairs)
			}
		}
	}
	for _, k := range []Kind{DirectorAdded, DirectorRemoved, DirectorKilled, DirectorCrashed, DirectorRestarted, DirectorBlind,
		DirectorSees, DirectorUpgraded, AgentUpgraded, QueuesChanged, StoreMemberLost, StoreMemberBack, BackendsAdded, BackendsDrained, BackendsReturned, BackendsRemoved, BackendsKilled,
		BackendsMixed, WeightsChanged, RingResized} {
		if kinds[k] == 0 {
			t.Errorf("%s never happens", k)
		}
	}
}

// At all times some director forwards and some backend answers, and each event is possible in the
// state of its director or backend.
func TestEventsArePossible(t *testing.T) {
	for seed := range uint64(200) {
		o := options(seed)
		o.Directors = 2 + int(seed%3)
		before := Begin(o)
		for _, e := range Make(o) {
			if err := possible(o, before, e); err != nil {
				t.Fatalf("seed %d, %s at %s: %v", seed, e, e.At, err)
			}
			before = e.After
		}
	}
}

func possible(o Options, before Group, e Event) error {
	announced, active := 0, 0
	for _, is := range e.After.Announced {
		if is {
			announced++
		}
	}
	for i, b := range e.After.Backends {
		if b.State == Active {
			active++
		}
		if i < o.stay() && (b.State == Dead || b.State == Absent) {
			return fmt.Errorf("backend%d is %s, and should stay", i+1, b.State)
		}
		if old := before.Backends[i].State; old == Dead && b.State != Dead && e.Kind != BackendsRemoved {
			return fmt.Errorf("backend%d goes from dead to %s", i+1, b.State)
		}
	}
	switch {
	case announced < min(2, o.Directors-1):
		return fmt.Errorf("%d directors are left", announced)
	case active < fewest:
		return fmt.Errorf("%d backends are active", active)
	case e.Kind == DirectorUpgraded && before.DirectorVersions[e.Director] == e.After.DirectorVersions[e.Director],
		e.Kind == AgentUpgraded && before.AgentVersions[e.Backends[0]] == e.After.AgentVersions[e.Backends[0]]:
		return fmt.Errorf("it runs that version already")
	case e.Kind == DirectorAdded && before.Announced[e.Director]:
		return fmt.Errorf("it is there already")
	case e.OfOneDirector() && e.Kind != DirectorAdded && !before.Announced[e.Director]:
		return fmt.Errorf("it is not there")
	}
	return nil
}

// A schedule in which only backends change has as many events as another one; one in which only
// directors change has fewer, because a director rests after each. Neither has double changes.
func TestOnlyOneKind(t *testing.T) {
	for _, only := range []struct {
		what  string
		set   func(o *Options)
		is    func(k Kind) bool
		least int
	}{
		{"backends", func(o *Options) { o.OnlyBackends = true }, Kind.OfBackends, 100},
		{"directors", func(o *Options) { o.OnlyDirectors = true }, func(k Kind) bool { return !k.OfBackends() }, 50},
	} {
		for seed := range uint64(50) {
			o := options(seed)
			only.set(&o)
			before, events := Begin(o), Make(o)
			for _, e := range events {
				if !only.is(e.Kind) || e.Double {
					t.Fatalf("only %s, seed %d: %s at %s", only.what, seed, e, e.At)
				}
				if err := possible(o, before, e); err != nil {
					t.Fatalf("only %s, seed %d, %s at %s: %v", only.what, seed, e, e.At, err)
				}
				before = e.After
			}
			if len(events) < only.least {
				t.Errorf("only %s, seed %d: %d events in two minutes, want %d", only.what, seed, len(events), only.least)
			}
		}
	}
}

// Every version has its turn on directors and agents, and in the end everything runs this version
// again.
func TestUpgradesGoBack(t *testing.T) {
	turns := map[string]int{}
	for seed := range uint64(50) {
		events := Make(options(seed))
		for _, e := range events {
			switch e.Kind {
			case DirectorUpgraded:
				turns["director "+e.After.DirectorVersions[e.Director].String()]++
			case AgentUpgraded:
				turns["agent "+e.After.AgentVersions[e.Backends[0]].String()]++
			}
		}
		end := events[len(events)-1].After
		for i, v := range end.DirectorVersions {
			if end.Announced[i] && v != This {
				t.Errorf("seed %d: director%d has gone %s, and not back", seed, i+1, v)
			}
		}
		for i, v := range end.AgentVersions {
			if v != This {
				t.Errorf("seed %d: the agent of backend%d has gone %s, and not back", seed, i+1, v)
			}
		}
	}
	for _, who := range []string{"director ", "agent "} {
		for v := This; v < Versions; v++ {
			if turns[who+v.String()] < 50 {
				t.Errorf("%s goes %s %d times in 50 seeds", who, v, turns[who+v.String()])
			}
		}
	}
}
