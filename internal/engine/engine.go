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

// Engine keeps the sinks at what is desired. One goroutine, the one in Run, owns
// all of its state but what Desired returns.
type Engine struct {
	forwarder Forwarder
	log       *slog.Logger
	planner   *Planner
	requests  chan request
	stopped   chan struct{}

	mu      sync.Mutex
	running model.Config
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
		requests:  make(chan request),
		stopped:   make(chan struct{}),
	}
}

// Run does what Apply asks for, until the context ends. It is called once. The
// sinks keep what they have when it returns: forwarding goes on.
func (e *Engine) Run(ctx context.Context) {
	defer close(e.stopped)
	var desired model.Config
	var pause time.Duration
	var retry <-chan time.Time
	for {
		var result chan<- error
		select {
		case <-ctx.Done():
			return
		case r := <-e.requests:
			desired, result, pause = r.desired, r.result, 0
		case <-retry:
		}
		err := e.set(desired)
		retry = nil
		if err != nil {
			pause = min(max(2*pause, firstRetry), lastRetry)
			retry = time.After(pause)
			if result == nil { // else Apply's caller says so
				e.log.Error("desired state is not what runs", "error", err, "retry-in", pause)
			}
		}
		if result != nil {
			result <- err
		}
	}
}

// Apply makes a valid configuration the desired one, and returns when the sinks
// have taken it or with the error of one that has not. After an error it is
// still the desired one: it is tried again until a sink takes it, or until Apply
// is called again. Apply needs Run to be running, and waits for it.
func (e *Engine) Apply(desired model.Config) error {
	result := make(chan error, 1)
	select {
	case e.requests <- request{desired, result}:
		return <-result
	case <-e.stopped:
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

func (e *Engine) set(desired model.Config) error {
	table, report := e.planner.Plan(desired, nil)
	if err := e.forwarder.Set(table); err != nil {
		return fmt.Errorf("set forwarding table: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = desired
	slots, held := 0, 0
	for _, s := range report.Services {
		slots, held = slots+s.Slots, held+s.Held
	}
	e.log.Debug("desired state runs", "services", len(report.Services), "slots", slots, "held", held)
	return nil
}
