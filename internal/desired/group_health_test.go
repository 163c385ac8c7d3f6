package desired

import (
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// fixedViews are views that the test sets.
type fixedViews struct {
	views   []model.View
	changes chan struct{}
}

func (v *fixedViews) Views() []model.View      { return v.views }
func (v *fixedViews) Changed() <-chan struct{} { return v.changes }
func (v *fixedViews) Report([]model.View)      {}

// The finding of most directors counts, and none does if the directors are evenly split.
func TestMajority(t *testing.T) {
	s := slow(1)
	b := s.Backends[0].Endpoint()
	view := func(letter rune) model.View {
		v := model.View{ServiceID: s.ID()}
		switch letter {
		case 'u':
			v.Up = append(v.Up, b)
		case 'd':
			v.Down = append(v.Down, b)
		}
		return v
	}
	for text, want := range map[string]model.HealthState{
		"": "", "n": "", "u": model.HealthUp, "d": model.HealthDown, "ud": model.HealthUnknown, "udd": model.HealthDown,
		"uud": model.HealthUp, "un": model.HealthUp, "udn": model.HealthUnknown, "uudd": model.HealthUnknown, "nnd": model.HealthDown,
	} {
		var views []model.View
		for _, letter := range text {
			views = append(views, view(letter))
		}
		if got := majority(views)[model.Target{Service: s.ID(), Backend: b}]; got != want {
			t.Errorf("of directors that find %q most find %q, want %q", text, got, want)
		}
	}
}

// How long most have found it so begins again only when most find something else.
func TestMajorityLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slow(1)
		b := s.Backends[0].Endpoint()
		up, down := model.View{ServiceID: s.ID(), Up: []netip.AddrPort{b}}, model.View{ServiceID: s.ID(), Down: []netip.AddrPort{b}}
		views := &fixedViews{}
		c := &groupHealth{views: views}
		want := func(state model.HealthState, since time.Duration, list ...model.View) {
			t.Helper()
			views.views = list
			if got := c.Found()[model.Target{Service: s.ID(), Backend: b}]; got.State != state || got.For != since {
				t.Errorf("most find %v, want %s for %v", got, state, since)
			}
			pass(time.Second)
		}
		want(model.HealthUp, 0, up, up, up)
		want(model.HealthUp, time.Second, up, up, down)
		want(model.HealthDown, 0, up, down, down)
		want(model.HealthDown, time.Second, down, down, down)
		want("", 0)
		want(model.HealthDown, 0, down)
	})
}

// A group's backend that comes back gets its share step by step, by what most directors find:
// the same on all, also on one that starts meanwhile, and one director alone changes nothing.
func TestGroupStartsSlowly(t *testing.T) {
	group := newGroup(t, etcdlab.New(t, etcdlab.Options{Members: 1}), 3)
	s := shared("a", 1, 3)
	s.Health = &model.HealthCheck{Kind: model.CheckTCP, SlowStart: model.Duration(4 * time.Second)}
	find := func(backend int, state model.HealthState, members ...*member) {
		for _, m := range members {
			m.probes.find(&s, backend, state)
		}
	}
	for _, m := range group {
		m.probes = newProber()
		for i := range s.Backends {
			find(i, model.HealthUp, m)
		}
		m.must()
	}
	put(t, group[0], "cli", s)
	steps := func(m *member) []model.Step { return m.logOf(t).Steps }
	agree(t, group...)
	group[0].wantShares(t, "at first", 1, 1, 1)

	find(0, model.HealthDown, group[0])
	find(1, model.HealthDown, group[1:]...)
	until(t, "the share of what most find down shrinks", func() bool { return len(steps(group[0])) == 1 })
	if got := steps(group[0])[0]; got.Backend != s.Backends[1].Endpoint() || got.Number != 1 {
		t.Fatalf("the step is %+v, want the first one of backend 1, which most find down", got)
	}
	agree(t, group...)
	group[2].wantShares(t, "down", 1, 1./8, 1)

	find(1, model.HealthUp, group[1:]...)
	until(t, "it is on its way", func() bool { now := steps(group[1]); return len(now) == 0 || now[0].Number >= 3 })
	group[2].stop()
	group[0].stop()
	group[2].must()
	until(t, "one director finds what it did", func() bool { return len(steps(group[1])) == 0 })
	group[0].must()
	agree(t, group...)
	group[0].wantShares(t, "in the end", 1, 1, 1)
}

// A backend whose agent reports strain keeps a part of its share, the same by all directors,
// and gets it back when it reports none any more.
func TestGroupRelievesBackends(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	group := newGroup(t, c, 2)
	s := shared("a", 1, 3)
	s.Health = &model.HealthCheck{Kind: model.CheckTCP, Passive: &model.Passive{Pace: model.Duration(time.Second)}}
	for _, m := range group {
		m.probes = newProber()
		for i := range s.Backends {
			m.probes.find(&s, i, model.HealthUp)
		}
		m.must()
	}
	agents := openGroup(t, c, "", slog.New(slog.DiscardHandler))
	report := func(overflows float64) {
		t.Helper()
		var reports []model.AgentReport
		for i, b := range s.Backends {
			of := model.ReportedService{ServiceID: s.ID(), Used: model.NewSlotSet(s.ReportRanges())}
			r := model.AgentReport{Backend: b.Address, Taken: time.Now(), Services: []model.ReportedService{of}}
			if i == 1 && overflows > 0 {
				r.Signals = []model.Signal{{ServiceID: s.ID(), Overflows: overflows}}
			}
			reports = append(reports, r)
		}
		if err := agents.PutReports(t.Context(), reports); err != nil {
			t.Fatal(err)
		}
	}
	put(t, group[0], "cli", s)
	parts := func() uint8 {
		if strained := group[0].logOf(t).Strained; len(strained) > 0 {
			return strained[0].Parts
		}
		return model.ShareParts
	}
	report(0)
	agree(t, group...)
	group[1].wantShares(t, "at first", 1, 1, 1)
	report(7)
	until(t, "half of its share is left", func() bool { report(7); return parts() == 4 })
	agree(t, group...)
	group[1].wantShares(t, "strained", 1, 1./2, 1)
	target := model.Target{Service: s.ID(), Backend: s.Backends[1].Endpoint()}
	if got := group[1].Strained(); len(got) != 1 || got[target].Parts != 4 || got[target].Overflows != 7 {
		t.Errorf("strained are %v, want backend 1 alone", got)
	}
	until(t, "it has its share again", func() bool { report(0); return parts() == model.ShareParts })
	agree(t, group...)
	group[1].wantShares(t, "in the end", 1, 1, 1)
	if got := group[1].Strained(); len(got) > 0 {
		t.Errorf("in the end strained are %v", got)
	}
}
