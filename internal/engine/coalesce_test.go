package engine

import (
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// hasty is a configuration whose changes are coalesced and whose log is short.
func hasty(name string, backends int) model.Config {
	s := web(backends)
	s.Name, s.Drain = name, model.Duration(10*time.Second)
	c := config(s)
	c.Coalesce = model.Duration(50 * time.Millisecond)
	return c
}

func TestChangesAreCoalesced(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		begin := time.Now()
		if err := e.Apply(hasty("a", 2)); err != nil {
			t.Fatal(err)
		}
		if time.Since(begin) != 0 {
			t.Error("the first configuration waited")
		}
		var callers sync.WaitGroup
		for i, name := range []string{"b", "c", "d"} {
			callers.Go(func() {
				pass(time.Duration(i) * 20 * time.Millisecond)
				if err := e.Apply(hasty(name, 2+i)); err != nil {
					t.Error(err)
				}
				if time.Since(begin) != 50*time.Millisecond {
					t.Errorf("%s was set after %v", name, time.Since(begin))
				}
			})
		}
		callers.Wait()
		sink.want(t, "a", "d")
		runs(t, e, "d")
		if got := e.Report().Services[0]; got.Generations != 2 || got.Members != 4 {
			t.Errorf("three changes at once made %d generations, the newest of %d members", got.Generations, got.Members)
		}
	})
}

func TestLogsAreTrimmedInTime(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		want := func(generations, shared int) {
			t.Helper()
			s := web(1)
			got := e.Report().LogStatus()[s.ID()]
			if got.Generations != generations || (got.Shared > 0) != (shared > 0) || got.Waits {
				t.Errorf("%d generations, %d slots shared, waits: %v; want %d, shared: %v",
					got.Generations, got.Shared, got.Waits, generations, shared > 0)
			}
		}
		for n := 2; n < 5; n++ {
			if err := e.Apply(hasty("a", n)); err != nil {
				t.Fatal(err)
			}
		}
		want(3, 1)
		pass(9 * time.Second)
		want(3, 1)
		sink.want(t, "a", "a", "a")
		pass(2 * time.Second)
		want(1, 0)
		pass(time.Hour)
		sink.want(t, "a", "a", "a", "a", "a") // one for each that left, and then none
	})
}

// A configuration that no sink took may have placed connections.
func TestFailedSetStaysInTheLog(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		e.Apply(hasty("a", 2))
		sink.failWith(errFull)
		e.Apply(hasty("a", 3))
		sink.failWith(nil)
		if err := e.Apply(hasty("a", 4)); err != nil {
			t.Fatal(err)
		}
		if got := e.Report().Services[0].Generations; got != 3 {
			t.Errorf("the log has %d generations, want 3", got)
		}
	})
}

func TestAnotherPortIsAnotherService(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		e.Apply(hasty("a", 2))
		e.Apply(hasty("b", 3))
		if got := e.Report().Services[0].Generations; got != 2 {
			t.Errorf("under another name the log has %d generations, want 2", got)
		}
		c := hasty("b", 4)
		c.Services[0].Port = model.PortRange{First: 81, Last: 81}
		e.Apply(c)
		if got := e.Report().Services[0].Generations; got != 1 {
			t.Errorf("at another port the log has %d generations, want 1", got)
		}
	})
}

func TestEndWhileChangesWait(t *testing.T) {
	start(t, func(t *testing.T, e *Engine, sink *recorder, stop func()) {
		e.Apply(hasty("a", 2))
		result := make(chan error)
		go func() { result <- e.Apply(hasty("b", 2)) }()
		pass(10 * time.Millisecond)
		stop()
		if err := <-result; err != ErrStopped {
			t.Errorf("Apply returned %v at the end", err)
		}
		runs(t, e, "a")
	})
}
