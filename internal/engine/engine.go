package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// Engine keeps the sinks at what is desired. One goroutine, the one in Run, owns all
// of its state but what Desired, Report, LogStatus and Held return.
type Engine struct {
	forwarder Forwarder
	log       *slog.Logger
	planner   *Planner
	requests  chan request
	stopped   chan struct{}
	placing   map[model.ServiceID]*model.TableService // what the sinks took last

	mu      sync.Mutex
	running model.Config
	report  Report
	coming  Report // about the plan that a sink is taking, or took in part
	held    heldAt // in the plan that runs, and in plans that a sink took in part
	moves   map[model.ServiceID]tally
}

type request struct {
	desired model.Config
	logs    Logs
	result  chan<- error
}

// New returns an engine that does nothing before Run.
func New(forwarder Forwarder, log *slog.Logger) *Engine {
	return &Engine{
		forwarder: forwarder,
		log:       log,
		planner:   NewPlanner(),
		held:      heldAt{},
		moves:     map[model.ServiceID]tally{},
		requests:  make(chan request),
		stopped:   make(chan struct{}),
	}
}

// Run does what Apply asks for, until the context ends. It is called once. The
// sinks keep what they have when it returns: forwarding goes on.
func (e *Engine) Run(ctx context.Context) {
	defer close(e.stopped)
	var (
		wanted request
		pause  time.Duration
		next   <-chan time.Time
	)
	for {
		var caller chan<- error // of Apply
		select {
		case <-ctx.Done():
			return
		case wanted = <-e.requests:
			caller, pause = wanted.result, 0
		case <-next:
		}
		next = nil
		err := e.set(wanted.desired, wanted.logs)
		if err != nil {
			pause = min(max(2*pause, firstRetry), lastRetry)
			next = time.After(pause)
		}
		switch {
		case caller != nil:
			caller <- err
		case err != nil:
			e.log.Error("desired state is not what runs", "error", err, "retry-in", pause)
		}
	}
}

// Apply makes a valid configuration the desired one, with the logs of its services,
// and returns when the sinks have taken it or with the error of one that has not.
// After an error it is still the desired one: it is tried again until a sink takes
// it, or until Apply is called again. Apply needs Run to be running, and waits for it.
func (e *Engine) Apply(desired model.Config, logs Logs) error {
	result := make(chan error, 1)
	select {
	case e.requests <- request{desired, logs, result}:
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

// LogStatus returns what the services' logs are and do in the plan that runs; of services
// that are not in it, in the plan that a sink is taking: it may forward to them already.
func (e *Engine) LogStatus() map[model.ServiceID]model.LogStatus {
	e.mu.Lock()
	running, coming, moves := e.report, e.coming, maps.Clone(e.moves)
	e.mu.Unlock()
	all := coming.LogStatus()
	maps.Copy(all, running.LogStatus())
	for id, log := range all {
		log.Moved, log.MovedTotal = moves[id].last, moves[id].total
		all[id] = log
	}
	return all
}

// set hands the plan to the sinks. After an error, too, connections may have been
// placed by it: a sink may have taken a part of it.
func (e *Engine) set(desired model.Config, logs Logs) error {
	table, report := e.planner.Plan(desired, logs, nil)
	e.mu.Lock()
	e.held.note(report)
	e.coming = report
	e.mu.Unlock()
	if err := e.forwarder.Set(table); err != nil {
		return fmt.Errorf("set forwarding table: %w", err)
	}
	e.noteMoves(&table, &report)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = heldAt{}
	e.held.note(report)
	e.running, e.report, e.coming = desired, report, Report{}
	slots, shared, held := 0, 0, 0
	for _, s := range report.Services {
		slots, shared, held = slots+s.Slots, shared+s.Shared, held+s.Held
	}
	e.log.Debug("desired state runs", "services", len(report.Services), "slots", slots, "shared", shared, "held", held)
	return nil
}
