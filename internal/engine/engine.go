package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// Forwarder is the sink that forwards packets: the datapath.
type Forwarder interface {
	// Set makes the datapath forward by the table, all of it. It can be called again after an
	// error, with any table, and works out the difference itself. It returns a NoRoom if rows with
	// fewer candidates might do.
	Set(table model.Table) error
}

// Checker finds out which backends are healthy: internal/health.
type Checker interface {
	// Set replaces the checks that are made.
	Set(checks []model.Check)
	// States returns what is known about every backend that is checked, if it should count.
	States() map[model.Target]model.HealthState
	// Changed is sent to when what States returns has changed.
	Changed() <-chan struct{}
}

// NoRoom is a sink's error that says that it has too little memory for the rows of a table.
type NoRoom interface {
	error
	NoRoom()
}

// ErrStopped is what Apply returns after Run has.
var ErrStopped = errors.New("the engine has stopped")

// The first and the longest pause before a sink that returned an error is tried again: each is
// twice the one before.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Engine makes the sinks do what is desired. One goroutine, the one in Run, owns all of its state
// except what Desired, Report, LogStatus and Held return.
type Engine struct {
	forwarder  Forwarder
	announcer  Announcer           // nil: routers are told by another program, or not yet
	announced  *model.Announcement // what the announcer should be set to; nil: nothing is known yet
	begun      bool                // it has been set
	waiting    waiting             // what the announcer is set to later
	announcers chan Announcer
	checker    checker
	loads      loads
	log        *slog.Logger
	planner    *Planner
	requests   chan request
	stopped    chan struct{}
	alive      chan struct{}                           // Run sends between two things that it does
	placing    map[model.ServiceID]*model.TableService // what the sinks took last
	applied    request                                 // the request for it

	mu      sync.Mutex
	running model.Config
	runs    bool // the sinks have taken the last request of Apply
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

// Deps are what an engine works with. All except Forwarder and Log may be nil.
type Deps struct {
	Forwarder Forwarder
	Checker   Checker // whose results the engine follows
	// Inherited are the backends that an earlier process left healthy and in use. They stay so until
	// as many probes have failed as it takes for any backend: a new process is no reason to believe
	// the first failure.
	Inherited map[model.Target]bool
	Ways      Ways  // a new VIP's announcement waits until its packets can be forwarded
	Loads     Loads // without loads, policies that go by them take turns
	Log       *slog.Logger
}

// New returns an engine that does nothing before Run.
func New(deps Deps) *Engine {
	return &Engine{
		forwarder:  deps.Forwarder,
		checker:    checker{Checker: deps.Checker, inherited: deps.Inherited},
		waiting:    waiting{ways: deps.Ways},
		loads:      loads{Loads: deps.Loads},
		log:        deps.Log,
		planner:    NewPlanner(),
		held:       heldAt{},
		moves:      map[model.ServiceID]tally{},
		announcers: make(chan Announcer),
		requests:   make(chan request),
		stopped:    make(chan struct{}),
		alive:      make(chan struct{}),
	}
}

// Announce sets the sink that tells routers, from now on, or from when there are [Ways] for all
// that it should tell first. It needs Run to be running, and waits for it.
func (e *Engine) Announce(announcer Announcer) {
	select {
	case e.announcers <- announcer:
	case <-e.stopped:
	}
}

// Alive waits until Run is done with what it does, and ready for more.
func (e *Engine) Alive(ctx context.Context) error {
	select {
	case <-e.alive:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run does what Apply asks for, until the context ends. It is called once. The
// sinks keep what they have when it returns: forwarding goes on.
func (e *Engine) Run(ctx context.Context) {
	defer close(e.stopped)
	var (
		wanted  request
		retries = retry.Backoff{First: firstRetry, Last: lastRetry}
		pause   time.Duration
		next    <-chan time.Time // when the wanted plan is tried again
		turn    <-chan time.Time // when changes of health are applied
	)
	for {
		var (
			caller chan<- error // of Apply
			err    error
		)
		select {
		case <-ctx.Done():
			return
		case e.announcer = <-e.announcers:
			if e.announced != nil {
				e.advertise(e.announced)
			}
			continue
		case <-e.waiting.again:
			e.lookAgain()
			continue
		case e.alive <- struct{}{}:
			continue
		case wanted = <-e.requests:
			caller = wanted.result
			retries.Reset()
			e.noteAsked()
			e.checker.follow(ctx, &wanted, &e.applied)
			err = e.set(wanted)
		case <-next:
			err = e.set(wanted)
		case <-e.checker.changed():
			if turn == nil {
				turn = time.After(healthSettle)
			}
			continue
		case <-e.loads.changed():
			if turn == nil {
				turn = time.After(healthSettle)
			}
			continue
		case <-turn: // all changes are applied at once
			turn = nil
			if err = e.turn(wanted); err == nil {
				continue
			}
		}
		next = nil
		if err != nil {
			pause = retries.Next()
			next = time.After(pause)
		} else {
			e.checker.only(&wanted)
		}
		switch {
		case caller != nil:
			caller <- err
		case err != nil:
			e.log.Error("desired state is not what runs", "error", err, "retry-in", pause)
		}
	}
}

// Apply makes a valid configuration the desired one, with the logs of its services, and returns
// when the sinks have taken it, or with the error of a sink that has not. After an error it is
// still the desired one: it is tried again until a sink takes it, or until Apply is called again.
// Apply needs Run to be running, and waits for it.
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

// Runs reports whether the sinks have taken the last request of Apply.
func (e *Engine) Runs() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs
}

func (e *Engine) noteAsked() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs = false
}

// Desired returns the configuration that runs: the last that the sinks took. It is read only.
func (e *Engine) Desired() model.Config {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running
}

// Preview returns the table of a valid configuration with these logs, by the health that is known
// now. It sets nothing.
func (e *Engine) Preview(desired model.Config, logs Logs) model.Table {
	table, _ := NewPlanner().Plan(desired, logs, e.checker.health())
	return table
}

// Report returns the report of the plan that runs. It is read only.
func (e *Engine) Report() Report {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.report
}

// LogStatus returns the status of the services' logs in the plan that runs; for services that are
// not in it, in the plan that a sink is taking: it may forward to them already.
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

// set hands the plan to the sinks. Even after an error connections may have been placed by it: a
// sink may have taken a part of it.
func (e *Engine) set(wanted request) error {
	health := e.checker.health()
	table, report := e.planner.Plan(wanted.desired, wanted.logs, health)
	e.mu.Lock()
	e.held.note(report)
	e.coming = report
	e.mu.Unlock()
	next := announcement(&wanted.desired, &report)
	next.Services = servicesTold(&wanted.desired, wanted.logs, health, &report)
	e.withdraw(&next)
	table = e.loads.degrade(table)
	if err := e.forwarder.Set(table); err != nil {
		return fmt.Errorf("set forwarding table: %w", err)
	}
	e.noteMoves(&table, &report)
	e.noteHealth(&report)
	e.noteTiers(&report)
	e.applied = wanted
	e.noteRuns(wanted, report)
	// Not earlier: it looks at the forwarder, and waits for readers of its state. They would get
	// what runs now with the report of the plan before.
	e.announce(&next, newFirstChecks(&wanted.desired, &report))
	return nil
}

// noteRuns says what runs from now on.
func (e *Engine) noteRuns(wanted request, report Report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = heldAt{}
	e.held.note(report)
	e.running, e.report, e.coming, e.runs = wanted.desired, report, Report{}, true
	slots, shared, held := 0, 0, 0
	for _, s := range report.Services {
		slots, shared, held = slots+s.Slots, shared+s.Shared, held+s.Held
	}
	e.log.Debug("desired state runs", "services", len(report.Services), "slots", slots, "shared", shared, "held", held)
}

// heldAt has the generations that still place connections though newer ones have replaced them.
type heldAt map[model.ServiceID]history.Held

func (h heldAt) note(r Report) {
	for _, s := range r.Services {
		for _, number := range s.HeldAt {
			if h[s.ID] == nil {
				h[s.ID] = history.Held{}
			}
			h[s.ID][number] = true
		}
	}
}

// Held returns the generations of a service that still place connections though newer ones have
// replaced them: in the plan that runs, and in later plans that a sink may have taken in part.
func (e *Engine) Held(id model.ServiceID) history.Held {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.held[id])
}

// withdraw withdraws routes before their VIPs are no longer forwarded. A director that has
// announced nothing yet opens no session for it: it would tell routers that it has no routes, and
// they would forget those that they keep from the process before.
func (e *Engine) withdraw(next *model.Announcement) {
	e.waiting.forget(next)
	if e.announced == nil {
		return
	}
	stays := *e.announced
	stays.Routes, stays.VIPs = staying(stays.Routes, next.Routes), stayingUp(stays.VIPs, next.VIPs)
	var gone bool
	stays.EVPN, gone = stayingEntries(stays.EVPN, next.EVPN)
	if gone || len(stays.Routes) < len(e.announced.Routes) || len(stays.VIPs) < len(e.announced.VIPs) {
		e.advertise(&stays)
	}
}

// advertise sets the announcer. It is not first set to a part: it would tell routers that this is all,
// and they would forget the other routes that they keep from the process before.
func (e *Engine) advertise(now *model.Announcement) {
	e.announced = now
	if e.announcer == nil || !e.begun && e.waiting.again != nil {
		return
	}
	e.begun = true
	e.announcer.Set(*now)
}
