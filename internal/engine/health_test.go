package engine

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/model"
)

// checkedWeb is web with a check.
func checkedWeb(n int, percent uint8) model.Service {
	s := web(n)
	s.Health = &model.HealthCheck{Kind: model.CheckTCP, Panic: &percent}
	return s
}

func targetOf(s *model.Service, i int) model.Target {
	return model.Target{Service: s.ID(), Backend: s.Backends[i].Endpoint()}
}

// TestPanic writes a backend as a letter: u is up, d down, n unknown, x not asked for yet
// (serving), D down and draining, 0 down and of weight 0, m down by the configuration. The
// plan's are a active, d down or suspect, r draining.
func TestPanic(t *testing.T) {
	states := map[rune]model.HealthState{'u': model.HealthUp, 'd': model.HealthDown, 'n': model.HealthUnknown,
		'D': model.HealthDown, '0': model.HealthDown}
	for _, test := range []struct {
		percent    uint8
		health     string
		plan       string
		panic      bool
		wantCounts [3]int // up, down, unknown
	}{
		{50, "uuuu", "aaaa", false, [3]int{4, 0, 0}},
		{50, "uudd", "aadd", false, [3]int{2, 2, 0}},
		{50, "uddd", "aaaa", true, [3]int{1, 3, 0}},
		{50, "dddd", "aaaa", true, [3]int{0, 4, 0}},
		{20, "udddd", "adddd", false, [3]int{1, 4, 0}},
		{20, "uddddd", "aaaaaa", true, [3]int{1, 5, 0}},
		{1, "ud", "ad", false, [3]int{1, 1, 0}},
		{1, "dd", "aa", true, [3]int{0, 2, 0}},
		{0, "dd", "dd", false, [3]int{0, 2, 0}},
		{100, "ud", "aa", true, [3]int{1, 1, 0}},
		{100, "uu", "aa", false, [3]int{2, 0, 0}},
		// A backend whose health is not known yet leaves its slots to the others, if there are any.
		{50, "nnnn", "aaaa", false, [3]int{0, 0, 4}},
		{50, "unnn", "addd", false, [3]int{1, 0, 3}},
		{50, "udnn", "addd", false, [3]int{1, 1, 2}},
		{50, "dnnn", "aaaa", true, [3]int{0, 1, 3}},
		{0, "dnnn", "daaa", false, [3]int{0, 1, 3}},
		{50, "xxxd", "aaad", false, [3]int{3, 1, 0}},
		// A backend that gets no connections does not count; it is left when it is down.
		{50, "uDDD", "addd", false, [3]int{1, 0, 0}},
		{50, "u000", "addd", false, [3]int{1, 0, 0}},
		{50, "ummm", "addd", false, [3]int{1, 0, 0}},
		{50, "dD0m", "arad", true, [3]int{0, 1, 0}},
	} {
		t.Run(test.health, func(t *testing.T) {
			s := checkedWeb(len(test.health), test.percent)
			health := Health{}
			for i, letter := range test.health {
				switch letter {
				case 'D':
					s.Backends[i].State = model.Draining
				case '0':
					s.Backends[i].Weight = 0
				case 'm':
					s.Backends[i].State = model.Down
				}
				if state, known := states[letter]; known {
					health[targetOf(&s, i)] = state
				}
			}
			table, report := Plan(config(s), nil, health)
			var plan strings.Builder
			for _, b := range table.Services[0].Backends {
				plan.WriteString(map[model.BackendState]string{model.Active: "a", model.Down: "d", model.Suspect: "d", model.Draining: "r"}[b.State])
			}
			if plan.String() != test.plan {
				t.Errorf("with panic %d and health %s the backends are %s, want %s", test.percent, test.health, plan.String(), test.plan)
			}
			want := &model.ServiceHealth{Kind: model.CheckTCP, Up: test.wantCounts[0], Down: test.wantCounts[1], Unknown: test.wantCounts[2], Panic: test.panic}
			if diff := cmp.Diff(want, report.Services[0].Health); diff != "" {
				t.Errorf("the report is not as wanted (-want +got):\n%s", diff)
			}
			if !slices.Equal(table.Services[0].Ring.Slots, planOne(t, s, nil).Ring.Slots) {
				t.Error("health changed the ring")
			}
		})
	}
}

func TestChecks(t *testing.T) {
	ranged, nat, off, without := checkedWeb(1, 0), checkedWeb(3, 0), checkedWeb(1, 0), web(1)
	ranged.Port, ranged.Health.Port = model.PortRange{First: 80, Last: 90}, 81
	ranged.Backends[0].MTU, ranged.Backends[0].VLAN = 1400, 7
	nat.Port, nat.Mode = model.PortRange{First: 443, Last: 443}, model.NAT
	nat.Backends[1].Port, nat.Backends[1].State = 8443, model.Draining
	nat.Backends[2].State = model.Down
	off.Port.First, off.Port.Last = 82, 82
	off.Health.Kind = model.CheckNone
	without.Port.First, without.Port.Last = 83, 83
	desired := config(ranged, nat, off, without)
	desired.Director.Interfaces, desired.Directors = []string{"eth0"}, []netip.Prefix{netip.MustParsePrefix("10.0.9.0/24")}
	got := Checks(&desired, func(target model.Target) bool { return target == targetOf(&nat, 0) })
	to := func(port uint16, i byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, i}), port)
	}
	way := &model.CheckWay{
		CheckHost: &model.CheckHost{Interfaces: desired.Director.Interfaces, Directors: desired.Directors}, VIP: ranged.VIP,
		Backend: model.TableBackend{Name: "web-0", Address: ranged.Backends[0].Address, Mode: model.GUE, MTU: 1400, VLAN: 7},
	}
	want := []model.Check{
		{Target: targetOf(&ranged, 0), Service: "web", Backend: "web-0", To: to(81, 0), Way: way, How: ranged.Health},
		{Target: targetOf(&nat, 0), Service: "web", Backend: "web-0", To: to(443, 0), How: nat.Health, Serving: true},
		{Target: targetOf(&nat, 1), Service: "web", Backend: "web-1", To: to(8443, 1), How: nat.Health},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); diff != "" {
		t.Errorf("the checks are not as wanted (-want +got):\n%s", diff)
	}
}

// finder is a Checker that finds out what the test says.
type finder struct {
	mu      sync.Mutex
	states  Health
	checks  []model.Check
	changes chan struct{}
}

func newFinder() *finder { return &finder{states: Health{}, changes: make(chan struct{}, 1)} }

func (f *finder) Set(checks []model.Check) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checks = checks
	for _, c := range checks {
		if _, known := f.states[c.Target]; !known && !c.Serving {
			f.states[c.Target] = model.HealthUnknown
		}
	}
}

func (f *finder) States() map[model.Target]model.HealthState {
	f.mu.Lock()
	defer f.mu.Unlock()
	states := Health{}
	for _, c := range f.checks {
		if state, known := f.states[c.Target]; known {
			states[c.Target] = state
		}
	}
	return states
}

func (f *finder) Changed() <-chan struct{} { return f.changes }

func (f *finder) find(target model.Target, state model.HealthState) {
	f.mu.Lock()
	f.states[target] = state
	f.mu.Unlock()
	select {
	case f.changes <- struct{}{}:
	default:
	}
}

func (f *finder) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.states = Health{}
}

func (f *finder) checked() (targets []model.Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.checks {
		targets = append(targets, c.Target)
	}
	return targets
}

// stateSink notes the states of the backends of every table, service by service.
type stateSink struct {
	mu   sync.Mutex
	fail func(model.Table) error
	sets []string
	last model.Table
}

func (s *stateSink) Set(table model.Table) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text []string
	for _, service := range table.Services {
		states := service.Name + ":"
		for _, b := range service.Backends {
			states += map[model.BackendState]string{model.Active: "a", model.Down: "d", model.Suspect: "d"}[b.State]
		}
		text = append(text, states)
	}
	s.sets, s.last = append(s.sets, strings.Join(text, " ")), table
	if s.fail != nil {
		return s.fail(table)
	}
	return nil
}

func (s *stateSink) failWith(fail func(model.Table) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *stateSink) want(t *testing.T, when string, sets ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.sets, sets) {
		t.Errorf("%s the sink was set to %q, want %q", when, s.sets, sets)
	}
	s.sets = nil
}

func startChecked(t *testing.T, test func(t *testing.T, e *Engine, sink *stateSink, f *finder)) {
	startInheriting(t, nil, test)
}

// startInheriting is startChecked after a process that left these backends well.
func startInheriting(t *testing.T, well map[model.Target]bool, test func(t *testing.T, e *Engine, sink *stateSink, f *finder)) {
	synctest.Test(t, func(t *testing.T) {
		sink, f := &stateSink{}, newFinder()
		e := New(Deps{Forwarder: sink, Checker: f, Inherited: well, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.Run(ctx)
		}()
		test(t, e, sink, f)
		cancel()
		<-ended
	})
}

func apply(t *testing.T, e *Engine, services ...model.Service) {
	t.Helper()
	if err := e.Apply(config(services...), nil); err != nil {
		t.Fatal(err)
	}
}

func TestEngineFollowsHealth(t *testing.T) {
	startChecked(t, func(t *testing.T, e *Engine, sink *stateSink, f *finder) {
		s := checkedWeb(3, 0)
		begun := time.Now()
		go func() {
			for i := range 3 {
				time.Sleep(100 * time.Millisecond) // fake time
				f.find(targetOf(&s, i), []model.HealthState{model.HealthUp, model.HealthDown, model.HealthUp}[i])
			}
		}()
		apply(t, e, s)
		if took := time.Since(begun); took != 300*time.Millisecond {
			t.Errorf("the first plan was made after %v, want 300ms: when the last backend is known", took)
		}
		pass(time.Second)
		sink.want(t, "at the start", "web:ada")

		f.find(targetOf(&s, 1), model.HealthUp)
		f.find(targetOf(&s, 0), model.HealthDown)
		pass(healthSettle + time.Millisecond)
		sink.want(t, "after two changes of health", "web:daa")
		if got, want := sink.last.Services[0].Health, (model.ServiceHealth{Kind: model.CheckTCP, Up: 2, Down: 1}); got == nil || *got != want {
			t.Errorf("the service's health is %+v, want %+v", got, want)
		}

		s.Backends = append(s.Backends, web(4).Backends[3])
		apply(t, e, s)
		sink.want(t, "with a backend more, of which nothing is known,", "web:daad")
		f.find(targetOf(&s, 3), model.HealthUp)
		pass(time.Second)
		sink.want(t, "when it is up", "web:daaa")

		s.Health = nil
		apply(t, e, s)
		sink.want(t, "without checks", "web:aaaa")
		if left := f.checked(); len(left) > 0 {
			t.Errorf("without checks %v are checked", left)
		}
		f.forget()
		s.Health = checkedWeb(1, 0).Health
		apply(t, e, s)
		sink.want(t, "when they are checked again", "web:aaaa")
	})
}

func TestFirstPlanDoesNotWaitForEver(t *testing.T) {
	startChecked(t, func(t *testing.T, e *Engine, sink *stateSink, f *finder) {
		begun, s := time.Now(), checkedWeb(2, 0)
		apply(t, e, s)
		if took := time.Since(begun); took != firstResults {
			t.Errorf("the first plan was made after %v, want %v", took, firstResults)
		}
		sink.want(t, "while nothing is known", "web:aa")
		begun = time.Now()
		apply(t, e, checkedWeb(3, 0))
		if took := time.Since(begun); took != 0 {
			t.Errorf("the second plan was made after %v, want none", took)
		}
	})
}

// TestInheritedBackendsStay has backends that an earlier process has left well: nothing is known
// of them yet, and they are neither waited for nor taken out.
func TestInheritedBackendsStay(t *testing.T) {
	s, more := checkedWeb(3, 0), checkedWeb(5, 0)
	well := map[model.Target]bool{targetOf(&s, 0): true, targetOf(&s, 1): true, targetOf(&more, 4): true}
	startInheriting(t, well, func(t *testing.T, e *Engine, sink *stateSink, f *finder) {
		f.find(targetOf(&s, 2), model.HealthDown)
		begun := time.Now()
		apply(t, e, s)
		if took := time.Since(begun); took != 0 {
			t.Errorf("the first plan was made after %v, want at once", took)
		}
		sink.want(t, "at the start", "web:aad")
		f.find(targetOf(&s, 0), model.HealthDown)
		pass(time.Second)
		sink.want(t, "when one is found down", "web:dad")
		apply(t, e, more)
		sink.want(t, "with two backends more, of which one was left by the process before and is not wanted at first,", "web:daddd")
	})
}

// TestUnwell: what the next process is not to begin with is in the table, also while all
// backends are used.
func TestUnwell(t *testing.T) {
	s := checkedWeb(4, 50)
	for _, test := range []struct {
		when   string
		health Health
		states string
	}{
		{"nothing is known of one", Health{targetOf(&s, 0): model.HealthUp, targetOf(&s, 1): model.HealthUnknown}, "+-++"},
		{"most are down, and all are used", Health{targetOf(&s, 0): model.HealthDown, targetOf(&s, 1): model.HealthDown, targetOf(&s, 2): model.HealthDown}, "---+"},
	} {
		table, _ := Plan(config(s), nil, test.health)
		var states strings.Builder
		for _, b := range table.Services[0].Backends {
			states.WriteString(map[bool]string{false: "+", true: "-"}[b.Unwell])
		}
		if states.String() != test.states {
			t.Errorf("when %s, the backends are well and unwell %s, want %s", test.when, states.String(), test.states)
		}
	}
	s.Backends[3].State = model.Down
	if table, _ := Plan(config(s), nil, nil); !table.Services[0].Backends[3].Unwell {
		t.Error("a backend that is down by the configuration is well")
	}
	s.Health.Kind = model.CheckNone
	table, _ := Plan(config(s), nil, Health{targetOf(&s, 0): model.HealthDown})
	if table.Services[0].Backends[0].Unwell {
		t.Error("a backend that is not checked is unwell")
	}
}

// TestHealthIsFollowedWhileAChangeIsRefused has a sink that does not take what is wanted.
func TestHealthIsFollowedWhileAChangeIsRefused(t *testing.T) {
	startChecked(t, func(t *testing.T, e *Engine, sink *stateSink, f *finder) {
		good, bad := checkedWeb(2, 0), checkedWeb(2, 0)
		bad.Name, bad.Port = "bad", model.PortRange{First: 81, Last: 81}
		for _, s := range []model.Service{good, bad} {
			for i := range s.Backends {
				f.find(targetOf(&s, i), model.HealthUp)
			}
		}
		apply(t, e, good)
		sink.want(t, "at the start", "web:aa")
		sink.failWith(func(table model.Table) error {
			if table.Services[0].Name == "bad" {
				return errFull
			}
			return nil
		})
		if err := e.Apply(config(bad), nil); err == nil {
			t.Fatal("the sink's error is lost")
		}
		sink.want(t, "when it refuses", "bad:aa")
		f.find(targetOf(&good, 0), model.HealthDown)
		pass(healthSettle + time.Millisecond)
		sink.want(t, "when a backend falls of what runs", "bad:aa", "web:da")
		sink.failWith(nil)
		pass(lastRetry)
		sink.want(t, "when it takes it", "bad:aa")
		if left := f.checked(); !slices.Equal(left, []model.Target{targetOf(&bad, 0), targetOf(&bad, 1)}) {
			t.Errorf("what runs no more is checked: %v", left)
		}
	})
}
