// Package desired keeps what a director forwards at what is desired: the services of
// the director's own file and those of the sets in its store, each with its log of
// generations. A log is written before anything is forwarded by it, so that whoever
// comes next, this process's successor among them, continues it.
package desired

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
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

// Engine forwards.
type Engine interface {
	// Apply makes a configuration with these logs what is forwarded. After an error it
	// is tried again.
	Apply(desired model.Config, logs engine.Logs) error
	// Runs reports whether what Apply was given last is what is forwarded.
	Runs() bool
	// Held returns the generations that place connections of a service, though newer
	// ones have replaced them, by what is forwarded.
	Held(id model.ServiceID) history.Held
}

// Keeper is the one who writes logs.
type Keeper struct {
	local    Store // of this director alone
	hold     bool  // a change is made there also if it cannot be written
	problems Reporter
	engine   Engine
	log      *slog.Logger
	moved    [5]chan struct{} // have something after each change of the logs
	group    Group            // nil: nobody shares the sets
	news     <-chan store.State

	evidence *engine.Evidence
	reports  Reports // nil: agents have no way to report
	health   Health  // nil: nobody probes
	common   *common // what the group finds; nil: it does not share that
	noting   sync.Mutex
	renewing sync.Mutex
	renewed  time.Time           // when the evidence was
	asked    map[netip.Addr]bool // the backends that it is about

	joined joined

	mu                       sync.Mutex           // one change at a time is checked against the others, and applied
	file                     model.Config         // with overrides
	given                    model.Config         // as it was given
	past                     Past                 // nil: what ran before is not kept
	instead                  map[string]store.Set // of sets of this director's own, while a start tries what ran before
	handed, noted            revisions            // what the engine was given last, and what is known to have run
	overrides                []model.BackendOverride
	overridesIn              Overrides // nil: there are none
	begun                    bool      // there is a file
	state                    store.State
	shared                   store.State // the group's
	sharedErr                error       // why that, or a later one, is not what is forwarded
	refused                  refused
	ranBefore                *store.State  // of the group's, in an earlier process; nil: it is not known
	adopted                  chan struct{} // is closed when another one is
	applied                  engine.Logs   // that the engine was given last
	learned                  map[model.ServiceID]learned
	placing                  time.Time     // when the first of what is coming places connections; zero: nothing is
	unstored                 *model.Config // the file, if the store could not be written
	waiting                  map[string]*batch
	compared, comparedShared time.Time                // when the logs were, with the evidence
	left                     map[history.Cause]uint64 // generations
}

// New returns a keeper of a director that has a store of its own: the set of its file
// is in it, and, unless it joins a group, those of other owners.
func New(local Store, e Engine, log *slog.Logger) *Keeper {
	return &Keeper{
		local: local, engine: e, log: log, problems: nobody{}, adopted: make(chan struct{}), evidence: &engine.Evidence{}, waiting: map[string]*batch{}, left: map[history.Cause]uint64{},
		moved:   [5]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)},
		learned: map[model.ServiceID]learned{},
	}
}

// SetFile makes a valid version of the director's file what is forwarded, beside the
// sets. The first is applied at once, later ones when they have waited for the time
// that they give as coalesce: of several that come meanwhile the last is applied.
func (k *Keeper) SetFile(c model.Config) error {
	k.mu.Lock()
	first := !k.begun
	k.mu.Unlock()
	if first {
		_, err := k.setFile(c)
		return err
	}
	b := k.coalesce(store.OwnerFile, time.Duration(c.Coalesce), func(b *batch) {
		b.do = func() (Change, error) { return k.setFile(c) }
	})
	<-b.done
	return b.err
}

func (k *Keeper) setFile(c model.Config) (Change, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, err := k.local.Read(context.Background())
	if err != nil {
		return Change{}, err
	}
	k.state = before
	if _, err := k.joined.join(c, k.everything(), store.OwnerFile); err != nil {
		k.refuseFile(c, err)
		return Change{}, err
	}
	change, err := k.storeFile(c)
	if k.unstored == nil {
		k.refused.file = nil
		k.problems.Report(model.ProblemFile, "", nil)
	}
	return change, err
}

// storeFile makes a version of the file that goes together with the sets what is forwarded, with
// its overrides. The lock is held.
func (k *Keeper) storeFile(c model.Config) (Change, error) {
	given, before := c, k.state
	overrides := lasting(k.overrides, &c)
	c.Services = overriding(c.Services, overrides)
	var err error
	// Until it is stored, the file is what is tried again; what runs goes on.
	k.state, err = k.update(k.local, k.replaceWith(false, store.OwnerFile, c.Services))
	k.problems.Report(model.ProblemStore, partFile, err)
	if err != nil {
		k.unstored = &given
		k.wake()
		return Change{}, errors.Join(&PendingError{err}, k.goOnUnstored(given))
	}
	k.file, k.given, k.begun, k.unstored = c, given, true, nil
	if len(overrides) < len(k.overrides) {
		k.overrides = overrides
		_ = k.overridesIn.SaveOverrides(overrides) // what is not written is said, and written again
		k.problems.Report(model.ProblemStore, "overrides", nil)
	}
	return ChangeOf(before, k.state, store.OwnerFile), k.apply()
}

// goOnUnstored begins with the services that are stored, where the file cannot be: those ran
// before. The rest of the file is not stored anyway. The lock is held.
func (k *Keeper) goOnUnstored(c model.Config) error {
	if k.begun {
		return nil // what runs goes on
	}
	c.Services = k.state.Sets[store.OwnerFile].Services()
	if _, err := k.joined.join(c, k.everything(), store.OwnerFile); err != nil {
		return err
	}
	given := c
	given.Services = k.storedServices()
	k.file, k.given, k.begun = c, given, true
	return k.apply()
}

// update writes a change. That the disk may lose it again after a power cut is no
// reason not to forward by it.
func (k *Keeper) update(where Store, l *ledger) (store.State, error) {
	ctx, cancel := context.WithTimeout(context.Background(), updateTimeout)
	defer cancel()
	change := where.Update
	if k.hold && where == k.local {
		change = k.overridesIn.Hold
	}
	state, err := change(ctx, l.change)
	if err != nil && state.Sets == nil {
		return k.state, err
	}
	if where == k.local {
		k.problems.Warn(model.ProblemStore, "", unsynced(err))
	}
	k.settle(l)
	return state, nil
}

// unsynced words why a change may be lost again.
func unsynced(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the state may not outlive a power cut: %w", err)
}

// updateTimeout ends the wait for a store that does not answer, or that others write
// all the time.
const updateTimeout = 30 * time.Second

// apply hands what is desired to the engine.
func (k *Keeper) apply() error {
	k.takeShared()
	all := k.everything()
	joint, err := k.joined.join(k.file, all, "")
	k.problems.Report(model.ProblemSet, "", err)
	if err != nil {
		return err
	}
	logs, now := engine.Logs{}, time.Now()
	k.placing = time.Time{}
	for d := range all.All() {
		logs[d.Service.ID()] = k.asOf(d.Service.ID(), d.Log, now)
	}
	maps.DeleteFunc(k.learned, func(id model.ServiceID, _ learned) bool { _, is := logs[id]; return !is })
	k.applied = logs
	k.wake()
	err = k.engine.Apply(joint, logs)
	k.handed = revisions{k.state.Revision, k.shared.Revision}
	k.evidence.Crowd(errors.As(err, new(engine.NoRoom)))
	if err != nil {
		k.wake() // perhaps something need not stay then
		return &PendingError{err}
	}
	return nil
}

// PendingError is why what was asked for does not run yet, though nothing is wrong with it: it is
// tried again.
type PendingError struct{ Cause error }

// Error says so.
func (e *PendingError) Error() string {
	return "it does not run yet, and is tried again: " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *PendingError) Unwrap() error { return e.Cause }

func (k *Keeper) wake() {
	for _, moved := range k.moved {
		select {
		case moved <- struct{}{}:
		default:
		}
	}
}

// Log returns the log of a service by which it is forwarded; false: there is none.
func (k *Keeper) Log(id model.ServiceID) (model.Log, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	log, is := k.applied[id]
	return log, is
}
