// Package desired makes a director forward what is desired: the services of its own file and those
// of the sets in its store, each with its log of generations. A log is written before anything is
// forwarded by it, so that this process's successor, or another director, continues it.
//
// Changes come in:
//
//   - controller.go: the controller, what it works with, and how it stores the file and hands all to the engine
//   - coalesce.go: changes of one set that come together are one
//   - put.go, give.go: clients replace an owner's set; by Give they bring its logs, too
//   - stage.go: a set that is a part of the way to another one
//   - override.go: overrides of the file's backends
//   - group.go: the sets that a group of directors shares
//
// They are checked and written:
//
//   - join.go: the file and all sets as one configuration
//   - logchange.go: one change of a store, with the logs of its services
//   - changes.go: what differs between two versions of a set
//   - refused.go: what contradicts the rest, and is tried again when that changes
//   - runs.go: which versions the engine forwards by, so that a start can go back to the last of them
//
// And the logs change by themselves:
//
//   - tend.go: generations begin to place connections, and leave when no connection needs them
//   - ramp.go: the steps of backends that start slowly
//   - strain.go: a look at once when agents report signs of strain
//   - group_health.go: shares that follow what most of a group's directors find
package desired

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Store is where sets and their logs are.
type Store interface {
	Read(context.Context) (store.State, error)
	Update(context.Context, store.Change) (store.State, error)
}

// Engine is the part that forwards.
type Engine interface {
	// Apply makes the engine forward by a configuration with these logs. After an error it is tried
	// again.
	Apply(desired model.Config, logs engine.Logs) error
	// Runs reports whether the engine forwards by what Apply was last given.
	Runs() bool
	// Held returns the generations that still place connections of a service, though newer ones
	// have replaced them.
	Held(id model.ServiceID) history.Held
}

// moved are the channels of those that wait for a change of the logs.
type moved struct {
	tend, tendShared, assign, watch, listen chan struct{}
}

func newMoved() moved {
	wake := func() chan struct{} { return make(chan struct{}, 1) }
	return moved{tend: wake(), tendShared: wake(), assign: wake(), watch: wake(), listen: wake()}
}

func (m *moved) all() []chan struct{} {
	return []chan struct{}{m.tend, m.tendShared, m.assign, m.watch, m.listen}
}

// Controller makes the director forward what is desired, and writes the logs.
type Controller struct {
	local    Store // of this director alone
	hold     bool  // a change is made there even if it cannot be written
	problems Reporter
	engine   Engine
	log      *slog.Logger
	moved    moved // is sent to after each change of the logs
	group    Group // nil: the sets are not shared
	news     <-chan store.State

	evidence    *engine.Evidence
	reports     Reports      // nil: agents have no way to report
	health      Health       // nil: there are no probes
	groupHealth *groupHealth // what the group's probes find; nil: the group does not share it
	noting      sync.Mutex
	keepPast    bool // what ran before is not forgotten: the director does not let packets in yet
	renewing    sync.Mutex
	renewed     time.Time                  // when the evidence was renewed
	evidenceOf  map[model.HostAddress]bool // the backends that the evidence is about

	joined joined

	mu                       sync.Mutex           // changes are checked against each other, and applied, one at a time
	file                     model.Config         // with overrides
	given                    model.Config         // the file without overrides
	past                     Past                 // nil: what ran before is not kept
	instead                  map[string]store.Set // this director's own sets, while a start tries what ran before
	handed, noted            revisions            // the state that the engine was last given, and the last one that is known to have run
	overrides                []model.BackendOverride
	overridesIn              Overrides // nil: there are none
	begun                    bool      // there is a file
	state                    store.State
	shared                   store.State // the group's state
	sharedErr                error       // why the director does not forward the group's state, or a later one
	refused                  refused
	ranBefore                *store.State  // the group's state in an earlier process; nil: it is not known
	adopted                  chan struct{} // is closed when another state is adopted
	applied                  engine.Logs   // that the engine was last given
	learned                  map[model.ServiceID]learned
	placing                  time.Time     // when the first coming generation places connections; zero: none is coming
	unstored                 *model.Config // the file, if the store could not be written
	waiting                  map[string]*batch
	compared, comparedShared time.Time                // when the logs were compared with the evidence
	left                     map[history.Cause]uint64 // generations that have left logs
}

// Deps are what a controller works with. All except Local, Engine and Log may be nil.
type Deps struct {
	Local     Store // of this director alone
	Engine    Engine
	Problems  Reporter       // is told what does not run; for the file the part is empty, because the caller knows its name
	Overrides Overrides      // keeps the overrides of the file's backends
	Past      Past           // keeps what ran before: a start goes on with it if the kernel does not take the stored sets
	Health    Health         // slow starts follow what probes find
	Guesses   engine.Guesses // generations leave the logs by what the datapath sees, if no agents report
	Reports   Reports        // generations leave the logs by agents' reports
	Views     Views          // the shares of a group's backends follow what most of its directors find; needs Health
	Log       *slog.Logger
}

// New returns a controller of a director that has a store of its own: the set of its file
// is in it, and, unless it joins a group, those of other owners.
func New(deps Deps) *Controller {
	c := &Controller{
		local: deps.Local, engine: deps.Engine, problems: deps.Problems, past: deps.Past, health: deps.Health, reports: deps.Reports, log: deps.Log,
		adopted: make(chan struct{}), evidence: &engine.Evidence{Guesses: deps.Guesses}, waiting: map[string]*batch{}, left: map[history.Cause]uint64{},
		moved:   newMoved(),
		learned: map[model.ServiceID]learned{},
	}
	if c.problems == nil {
		c.problems = nobody{}
	}
	if deps.Overrides != nil {
		c.readOverrides(deps.Overrides)
	}
	if deps.Reports != nil {
		c.evidence.Renew(nil, false, time.Now()) // it is not known which backends there are
	}
	if deps.Views != nil {
		c.groupHealth = &groupHealth{views: deps.Views}
	}
	return c
}

// SetFile makes the director forward by a valid version of its file, beside the sets.
func (c *Controller) SetFile(config model.Config) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, err := c.local.Read(context.Background())
	if err != nil {
		return err
	}
	c.state = before
	if c.reports != nil && !c.begun && c.reports.None() { // else nothing that agents could report leaves before renew
		c.evidence.Renew(nil, true, time.Now())
	}
	if _, err := c.joined.join(config, c.everything(), store.OwnerFile); err != nil {
		c.refuseFile(config, err)
		return err
	}
	err = c.storeFile(config)
	if c.unstored == nil {
		c.refused.file = nil
		c.problems.Report(model.ProblemFile, "", nil)
	}
	return err
}

// storeFile makes the director forward by a version of the file that is compatible with the sets,
// with its overrides. The lock is held.
func (c *Controller) storeFile(config model.Config) error {
	given := config
	overrides := lasting(c.overrides, &config)
	config.Services = overriding(config.Services, overrides)
	var err error
	// Until it is stored, the file is what is tried again; what runs goes on.
	c.state, err = c.update(c.local, c.replaceWith(false, store.OwnerFile, config.Services))
	c.problems.Report(model.ProblemStore, partFile, err)
	if err != nil {
		c.unstored = &given
		c.wake()
		return errors.Join(&PendingError{err}, c.goOnUnstored(given))
	}
	c.file, c.given, c.begun, c.unstored = config, given, true, nil
	if len(overrides) < len(c.overrides) {
		c.overrides = overrides
		_ = c.overridesIn.SaveOverrides(overrides) // a failure is reported, and writing is tried again
		c.problems.Report(model.ProblemStore, "overrides", nil)
	}
	return c.apply()
}

// goOnUnstored begins with the stored services if the file cannot be stored: they ran before. The
// rest of the file is not stored anyway. The lock is held.
func (c *Controller) goOnUnstored(config model.Config) error {
	if c.begun {
		return nil // what runs goes on
	}
	config.Services = c.state.Sets[store.OwnerFile].Services()
	if _, err := c.joined.join(config, c.everything(), store.OwnerFile); err != nil {
		return err
	}
	given := config
	given.Services = c.storedServices()
	c.file, c.given, c.begun = config, given, true
	return c.apply()
}

// update writes a change. The director forwards by it even if the disk may lose it in a power cut.
func (c *Controller) update(where Store, l *logChange) (store.State, error) {
	ctx, cancel := context.WithTimeout(context.Background(), updateTimeout)
	defer cancel()
	change := where.Update
	if c.hold && where == c.local {
		change = c.overridesIn.Hold
	}
	state, err := change(ctx, l.change)
	if err != nil && state.Sets == nil {
		return c.state, err
	}
	if where == c.local {
		c.problems.Warn(model.ProblemStore, "", unsynced(err))
	}
	c.settle(l)
	return state, nil
}

// unsynced words why a change may be lost again.
func unsynced(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the state may not outlive a power cut: %w", err)
}

// updateTimeout ends the wait for a store that does not answer, or that other directors write all
// the time.
const updateTimeout = 30 * time.Second

// apply hands what is desired to the engine.
func (c *Controller) apply() error {
	c.adoptRefused()
	all := c.everything()
	joint, err := c.joined.join(c.file, all, "")
	c.problems.Report(model.ProblemSet, "", err)
	if err != nil {
		return err
	}
	logs, now := engine.Logs{}, time.Now()
	c.placing = time.Time{}
	for d := range all.All() {
		logs[d.Service.ID()] = c.asOf(d.Service.ID(), d.Log, now)
	}
	maps.DeleteFunc(c.learned, func(id model.ServiceID, _ learned) bool { _, is := logs[id]; return !is })
	c.applied = logs
	c.wake()
	err = c.engine.Apply(joint, logs)
	c.handed = revisions{c.state.Revision, c.shared.Revision}
	c.evidence.Crowd(errors.As(err, new(engine.NoRoom)))
	if err != nil {
		c.wake() // perhaps some generations can leave now
		return &PendingError{err}
	}
	return nil
}

// PendingError is why what was asked for does not run yet, though it is valid: it is tried again.
type PendingError struct{ Cause error }

// Error returns the reason.
func (e *PendingError) Error() string {
	return "it does not run yet, and is tried again: " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *PendingError) Unwrap() error { return e.Cause }

func (c *Controller) wake() {
	for _, moved := range c.moved.all() {
		select {
		case moved <- struct{}{}:
		default:
		}
	}
}

// Log returns the log by which a service is forwarded; false: there is none.
func (c *Controller) Log(id model.ServiceID) (model.Log, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	log, is := c.applied[id]
	return log, is
}
