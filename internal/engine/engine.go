package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// Forwarder is the sink that forwards packets: the datapath.
type Forwarder interface {
	// Set makes the table what is forwarded, all of it. It can be called again
	// after an error, with any table, and works out the difference itself.
	Set(table model.Table) error
}

// ErrStopped is what Apply returns after Run has.
var ErrStopped = errors.New("the engine has stopped")

// The first pause before a sink that returned an error is tried again, and the
// longest: each is twice the one before.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// leastPause is how long the engine waits at least before it looks again for
// generations to take out of the logs: those of many services leave together.
const leastPause = 100 * time.Millisecond

// Engine keeps the sinks at what is desired, and the logs of the services. One
// goroutine, the one in Run, owns all of its state but what Desired and Report
// return.
type Engine struct {
	forwarder Forwarder
	log       *slog.Logger
	planner   *Planner
	logs      Logs
	held      heldAt // in the plan that runs, and in plans that a sink took in part
	requests  chan request
	stopped   chan struct{}

	mu      sync.Mutex
	running model.Config
	report  Report
}

type request struct {
	desired model.Config
	result  chan<- error
}

// New returns an engine that does nothing before Run.
func New(forwarder Forwarder, log *slog.Logger) *Engine {
	return &Engine{
		forwarder: forwarder,
		log:       log,
		planner:   NewPlanner(),
		held:      heldAt{},
		requests:  make(chan request),
		stopped:   make(chan struct{}),
	}
}

// Run does what Apply asks for, until the context ends. It is called once. The
// sinks keep what they have when it returns: forwarding goes on.
func (e *Engine) Run(ctx context.Context) {
	defer close(e.stopped)
	var (
		desired model.Config
		callers []chan<- error // of Apply, that wait for the next set
		pause   time.Duration
		next    <-chan time.Time
		begun   bool
	)
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-e.requests:
			desired, pause = r.desired, 0
			callers = append(callers, r.result)
			if wait := time.Duration(desired.Coalesce); begun && wait > 0 {
				if len(callers) == 1 {
					next = time.After(wait)
				}
				continue
			}
		case <-next:
		}
		begun = true
		err := e.set(desired, time.Now())
		if err != nil {
			pause = min(max(2*pause, firstRetry), lastRetry)
			next = time.After(pause)
			if len(callers) == 0 { // else Apply's callers say so
				e.log.Error("desired state is not what runs", "error", err, "retry-in", pause)
			}
		} else {
			pause = 0
			next = e.nextTrim(desired, time.Now())
		}
		for _, caller := range callers {
			caller <- err
		}
		callers = nil
	}
}

// Apply makes a valid configuration the desired one, and returns when the sinks
// have taken it or with the error of one that has not. After an error it is
// still the desired one: it is tried again until a sink takes it, or until Apply
// is called again. Apply needs Run to be running, and waits for it.
//
// The first configuration is set at once. Later ones wait for the time that they
// give as coalesce, and the last that came meanwhile is set: they are one change.
func (e *Engine) Apply(desired model.Config) error {
	result := make(chan error, 1)
	select {
	case e.requests <- request{desired, result}:
	case <-e.stopped:
		return ErrStopped
	}
	select {
	case err := <-result:
		return err
	case <-e.stopped:
	}
	select {
	case err := <-result: // the last that was set
		return err
	default:
		return ErrStopped
	}
}

// Desired returns the configuration that runs: the last that the sinks took. It
// is to be read only.
func (e *Engine) Desired() model.Config {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running
}

// Report returns what the plan that runs says besides its table. It is to be read
// only.
func (e *Engine) Report() Report {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.report
}

// set brings the logs to what is desired and hands the plan to the sinks. After an
// error, too, the logs are those that the next set begins with: a sink may have
// taken a part of the plan, and connections may have been placed by it.
func (e *Engine) set(desired model.Config, now time.Time) error {
	e.advance(desired, now)
	table, report := e.planner.Plan(desired, e.logs, nil)
	e.held.note(report)
	if err := e.forwarder.Set(table); err != nil {
		return fmt.Errorf("set forwarding table: %w", err)
	}
	e.held = heldAt{}
	e.held.note(report)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running, e.report = desired, report
	slots, shared, held := 0, 0, 0
	for _, s := range report.Services {
		slots, shared, held = slots+s.Slots, shared+s.Shared, held+s.Held
	}
	e.log.Debug("desired state runs", "services", len(report.Services), "slots", slots, "shared", shared, "held", held)
	return nil
}
