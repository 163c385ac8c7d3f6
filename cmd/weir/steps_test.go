package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// stepsOf returns the steps in which a set becomes the one in the text.
func stepsOf(t *testing.T, client *api.Client, text api.SetText, count int) *steps {
	t.Helper()
	r := api.PlanRequest{Owner: "cli", SetText: text}
	plan, err := client.Plan(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return &steps{client: client, request: r, plan: &plan, count: count, say: t.Logf, progress: &progress{},
		watch: watch{every: 20 * time.Millisecond, patience: patience, resets: 1, dropped: 1000}}
}

// A change is made in equal parts. When a new backend fails its probes, or the user interrupts, the
// set becomes what it was; what another client has written meanwhile stays.
func TestApplyInSteps(t *testing.T) {
	h := newHost(t)
	h.backend.Address("eth0", "10.0.0.3/24", "10.0.0.4/24", "10.0.0.5/24")
	for _, address := range []string{"10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"} { // nothing listens on 10.0.0.5
		listener, err := h.backend.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
	}
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	client := api.NewClient(h.socket)
	set := func(backends int) api.SetText {
		text := "services: [{name: web, vip: 203.0.113.9, protocol: tcp, port: 80, mode: l2dsr, ring-size: 1021, " +
			"health: {kind: tcp, to: address, interval: 500ms, timeout: 450ms, rise: 1, fall: 6}, backends: ["
		for i := range backends {
			text += fmt.Sprintf("{address: 10.0.0.%d},", 2+i)
		}
		return api.SetText{Text: []byte(text + "]}]")}
	}
	tag := func() string {
		t.Helper()
		set, err := client.Set(t.Context(), "cli")
		if err != nil {
			t.Fatal(err)
		}
		return set.Tag
	}
	if _, err := client.PutSet(t.Context(), "cli", set(2), api.Condition{}); err != nil {
		t.Fatal(err)
	}
	p.wait("find both backends well", func() bool {
		services, err := client.Services(t.Context())
		for _, s := range services {
			if s.Name == "web" {
				return err == nil && s.Health != nil && s.Health.Up == 2
			}
		}
		return false
	})

	s := stepsOf(t, client, set(3), 3)
	done, last, err := s.apply(t.Context())
	if err != nil || len(done) != 3 || tag() != s.plan.Tag || last.Tag != s.plan.Tag {
		t.Fatalf("three steps are %+v: %v", done, err)
	}
	for _, step := range done {
		if part := float64(step.Moves[0].Moved) / float64(s.plan.Moves[0].Moved); part < 0.2 || part > 0.6 {
			t.Errorf("step %d of 3 moves %d of the %d slots that move at once", step.Step, step.Moves[0].Moved, s.plan.Moves[0].Moved)
		}
	}

	before := tag()
	s = stepsOf(t, client, set(4), 3)
	done, _, err = s.apply(t.Context())
	if err == nil || !strings.Contains(err.Error(), "web/10.0.0.5 fail their probes") || !strings.HasSuffix(err.Error(), "the set is what it was before") || len(done) != 1 {
		t.Errorf("with a backend that is not there %d steps are made: %v", len(done), err)
	}
	if got := tag(); got != before {
		t.Errorf("the set is %s, and was %s before", got, before)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s = stepsOf(t, client, set(2), 3)
	s.say = func(string, ...any) { cancel() }
	if _, _, err = s.apply(ctx); statusOf(err) != exitFailed || !strings.HasSuffix(err.Error(), "the set is what it was before") || tag() != before {
		t.Errorf("interrupted, it ends with %v, and the set %s, want %s", err, tag(), before)
	}

	s = stepsOf(t, client, set(2), 3)
	others := ""
	s.say = func(string, ...any) {
		change, err := client.PutSet(t.Context(), "cli", set(1), api.Condition{})
		if err != nil {
			t.Error(err)
		}
		others = change.Tag
	}
	done, _, err = s.apply(t.Context())
	if err == nil || !strings.Contains(err.Error(), "somebody else has changed it") || len(done) != 1 || tag() != others {
		t.Errorf("when somebody else writes the set meanwhile %d steps are made: %v, and it is %s, want theirs, %s", len(done), err, tag(), others)
	}
}

// A value that is worse than before by more than a limit is reported; one that was so before is
// not.
func TestWatchJudges(t *testing.T) {
	now := time.Now()
	services := func(change func(*model.ServiceStatus)) []model.ServiceStatus {
		s := model.ServiceStatus{Name: "web", Dropped: 100, Reset: 60}
		for i, state := range []model.HealthState{model.HealthUp, model.HealthUp, model.HealthDown} {
			s.Backends = append(s.Backends, model.BackendStatus{Name: fmt.Sprint("b", i), Health: &model.BackendHealth{State: state}})
		}
		change(&s)
		return []model.ServiceStatus{s, {Name: "other", Dropped: uint64(now.Nanosecond())}}
	}
	for name, test := range map[string]struct {
		failing int
		change  func(*model.ServiceStatus)
		says    string
	}{
		"nothing":       {0, func(*model.ServiceStatus) {}, ""},
		"one fails":     {0, func(s *model.ServiceStatus) { s.Backends[1].Health.State = model.HealthDown }, "web/b1 fail their probes"},
		"one may fail":  {1, func(s *model.ServiceStatus) { s.Backends[1].Health.State = model.HealthDown }, ""},
		"one is better": {0, func(s *model.ServiceStatus) { s.Backends[2].Health.State = model.HealthUp }, ""},
		"few resets":    {0, func(s *model.ServiceStatus) { s.Reset += 100 }, ""},
		"resets":        {0, func(s *model.ServiceStatus) { s.Reset += 200 }, "3.3 connections in a second are refused or reset more than before: more than 2"},
		"told": {0, func(s *model.ServiceStatus) {
			s.Reset += 200
			s.ResetsShared = []model.ResetsTold{{Director: netip.MustParseAddr("10.0.0.3"), Flows: 120}}
		}, "more than 2; of these are counted 2.0 by director 10.0.0.3"},
		"refused":        {0, func(s *model.ServiceStatus) { s.Backends[0].Strain = &model.BackendStrain{Refused: 1.5, Overflows: 1} }, "2.5 connections"},
		"as many drops":  {0, func(s *model.ServiceStatus) { s.Dropped += 10 }, ""},
		"drops":          {0, func(s *model.ServiceStatus) { s.Dropped += 20 }, "15.0 packets in a second are dropped more than before: more than 5"},
		"counters begin": {0, func(s *model.ServiceStatus) { s.Dropped = 0 }, ""},
	} {
		w := watch{failing: test.failing, resets: 2, dropped: 5, drops: 5, services: map[string]bool{"web": true}}
		w.first = w.readingOf(services(func(*model.ServiceStatus) {}), now)
		w.last = w.first
		err := w.judge(w.readingOf(services(test.change), now.Add(time.Second)))
		if got := fmt.Sprint(err); (err == nil) != (test.says == "") || !strings.Contains(got, test.says) {
			t.Errorf("%s: it says %v, want %q", name, err, test.says)
		}
	}
	w := watch{first: reading{refused: []string{"director 10.0.0.4 does not run what is asked for: as before"}}}
	other := func(address, refused string, revision uint64) model.DirectorRun {
		return model.DirectorRun{Address: netip.MustParseAddr(address), Refused: refused, Revision: revision}
	}
	var group reading
	group.addDirectors([]model.DirectorRun{other("10.0.0.2", "", 8), other("10.0.0.3", "", 7), other("10.0.0.4", "as before", 8)}, 8)
	if err := w.judge(group); err != nil || !slices.Equal(group.behind, []string{"director 10.0.0.3"}) {
		t.Errorf("of a group it says %v, and these are behind: %q", err, group.behind)
	}
	group.addDirectors([]model.DirectorRun{other("10.0.0.5", "no room for rings", 8)}, 8)
	if err := w.judge(group); err == nil || err.Error() != "director 10.0.0.5 does not run what is asked for: no room for rings" {
		t.Errorf("when another director refuses the set it says %v", err)
	}
	w = watch{services: map[string]bool{"web": true}}
	r := w.readingOf(services(func(s *model.ServiceStatus) { s.Log.Coming = 1; s.Backends[0].Health.State = model.HealthUnknown }), now)
	if len(r.coming) != 1 || len(r.unknown) != 1 || r.unknown[0] != "web/b0" {
		t.Errorf("what is not known yet is %+v", r)
	}
}
