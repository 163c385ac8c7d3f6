package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/model"
)

// recorder is a Forwarder that notes what it is set to, and fails on demand.
type recorder struct {
	mu   sync.Mutex
	fail error
	sets []string // names of the only service of each table
	at   []time.Time

	during func() // called by Set
}

func (r *recorder) Set(table model.Table) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets = append(r.sets, table.Services[0].Name)
	r.at = append(r.at, time.Now())
	if r.during != nil {
		r.during()
	}
	return r.fail
}

func (r *recorder) failWith(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func (r *recorder) want(t *testing.T, sets ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.sets, sets) {
		t.Errorf("the sink was set to %v, want %v", r.sets, sets)
	}
}

func named(name string) model.Config {
	s := web(2)
	s.Name = name
	return config(s)
}

var errFull = errors.New("map is full")

// start runs an engine in a bubble of fake time.
func start(t *testing.T, test func(t *testing.T, e *Engine, sink *recorder, stop func())) {
	synctest.Test(t, func(t *testing.T) {
		sink := &recorder{}
		e := New(Deps{Forwarder: sink, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.Run(ctx)
		}()
		test(t, e, sink, func() { cancel(); <-ended })
	})
}

func pass(d time.Duration) {
	time.Sleep(d) // fake time: it passes at once when nobody has anything to do
}

func runs(t *testing.T, e *Engine, name string) {
	t.Helper()
	got := ""
	if s := e.Desired().Services; len(s) > 0 {
		got = s[0].Name
	}
	if got != name {
		t.Errorf("%q runs, want %q", got, name)
	}
}

func TestApply(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		runs(t, e, "")
		for _, name := range []string{"a", "b", "b"} {
			if err := e.Apply(named(name), nil); err != nil {
				t.Fatal(err)
			}
			runs(t, e, name)
		}
		pass(time.Hour)
		sink.want(t, "a", "b", "b")
	})
}

// An engine whose sink hangs is not alive until that goes on.
func TestAliveIfNothingHangs(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		alive := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return e.Alive(ctx)
		}
		if err := alive(); err != nil {
			t.Errorf("an engine with nothing to do is not alive: %v", err)
		}
		goOn := make(chan struct{})
		sink.during = func() { <-goOn }
		go func() { _ = e.Apply(named("a"), nil) }()
		synctest.Wait()
		if err := alive(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an engine that hangs says %v", err)
		}
		close(goOn)
		if err := alive(); err != nil {
			t.Errorf("an engine that goes on is not alive: %v", err)
		}
	})
}

func TestFailedSetIsTriedAgain(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		if err := e.Apply(named("a"), nil); err != nil {
			t.Fatal(err)
		}
		sink.failWith(errFull)
		if err := e.Apply(named("b"), nil); !errors.Is(err, errFull) {
			t.Fatalf("Apply returned %v, want the sink's error", err)
		}
		runs(t, e, "a")
		pass(firstRetry + 2*firstRetry + firstRetry)
		runs(t, e, "a")
		sink.want(t, "a", "b", "b", "b")
		sink.failWith(nil)
		pass(4 * firstRetry)
		runs(t, e, "b")
		pass(time.Hour)
		sink.want(t, "a", "b", "b", "b", "b")
	})
}

// A sink lists what it is being set to before Set returns: its logs are known by then,
// and so they are where it took a part and failed.
func TestLogsOfWhatASinkTakes(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		service := web(2)
		id := service.ID()
		has := func(when string, want int) {
			t.Helper()
			if got := e.LogStatus()[id].Generations; got != want {
				t.Errorf("%s the log has %d generations, want %d", when, got, want)
			}
		}
		has("before the set", 0)
		sink.during = func() { has("during the set", 1) }
		sink.failWith(errFull)
		_ = e.Apply(named("a"), nil)
		has("after a set that failed", 1)
		sink.failWith(nil)
		pass(firstRetry)
		has("after the set", 1)
		sink.during = func() { has("while the service leaves", 1) }
		other := web(2)
		other.Port.First, other.Port.Last = 81, 81
		if err := e.Apply(config(other), nil); err != nil {
			t.Fatal(err)
		}
		has("after the service left", 0)
	})
}

func TestPausesGrowToALimit(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		sink.failWith(errFull)
		e.Apply(named("a"), nil)
		pass(time.Hour)
		sink.failWith(nil)
		stop()
		for i, at := range sink.at[1:] {
			want := lastRetry
			if i < 7 {
				want = min(firstRetry<<i, lastRetry)
			}
			if got := at.Sub(sink.at[i]); got != want {
				t.Fatalf("pause %d is %v, want %v", i, got, want)
			}
		}
		if len(sink.at) < 100 {
			t.Errorf("in an hour the sink was tried %d times", len(sink.at))
		}
	})
}

func TestLastApplyWins(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		sink.failWith(errFull)
		e.Apply(named("a"), nil)
		e.Apply(named("b"), nil)
		sink.failWith(nil)
		pass(time.Hour)
		runs(t, e, "b")
		sink.want(t, "a", "b", "b")
		sink.failWith(errFull)
		e.Apply(named("c"), nil)
		sink.failWith(nil)
		if err := e.Apply(named("d"), nil); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		runs(t, e, "d")
		sink.want(t, "a", "b", "b", "c", "d")
	})
}

func TestManyApplyAtOnce(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		var callers sync.WaitGroup
		for _, name := range []string{"a", "b", "c", "d"} {
			callers.Go(func() {
				if err := e.Apply(named(name), nil); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		stop()
		if len(sink.sets) != 4 {
			t.Errorf("four Apply set the sink to %v", sink.sets)
		}
		runs(t, e, sink.sets[3])
	})
}

func TestStop(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		if err := e.Apply(named("a"), nil); err != nil {
			t.Fatal(err)
		}
		sink.failWith(errFull)
		e.Apply(named("b"), nil)
		stop()
		pass(time.Hour)
		sink.want(t, "a", "b")
		if err := e.Apply(named("c"), nil); !errors.Is(err, ErrStopped) {
			t.Errorf("Apply after the end returned %v", err)
		}
		runs(t, e, "a")
	})
}
