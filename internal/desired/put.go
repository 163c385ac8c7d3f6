package desired

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// RefusedError is what is wrong with what was asked for. Nothing was changed.
type RefusedError struct{ cause error }

// Error names everything that is wrong.
func (e *RefusedError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.cause }

// Change is what became of a set: services by their names.
type Change struct {
	Revision                uint64 // of the state that has it
	Added, Changed, Removed []string
	Moves                   []model.Move // what becomes of the slots of those that are changed
}

// Put makes valid services the whole of an owner's set, and returns when they are what
// is forwarded. Sets of one owner that come within the file's coalesce are one change.
func (k *Keeper) Put(ctx context.Context, owner string, services []model.Service) (Change, error) {
	if _, _, err := k.tryPut(ctx, owner, services); err != nil {
		return Change{}, err // before it takes the place of another that waits
	}
	k.mu.Lock()
	wait := time.Duration(k.file.Coalesce)
	k.mu.Unlock()
	b := k.coalesce(owner, wait, func() (Change, error) { return k.put(owner, services) })
	select {
	case <-b.done:
		return b.change, b.err
	case <-ctx.Done():
		return Change{}, ctx.Err()
	}
}

// DryPut says what Put would change.
func (k *Keeper) DryPut(ctx context.Context, owner string, services []model.Service) (Change, error) {
	before, after, err := k.tryPut(ctx, owner, services)
	if err != nil {
		return Change{}, err
	}
	return changeOf(before, after, owner).withMoves(before, after, owner), nil
}

// tryPut returns the state, and what Put would make of it.
func (k *Keeper) tryPut(ctx context.Context, owner string, services []model.Service) (before, after store.State, err error) {
	if owner == store.OwnerFile {
		return before, after, &RefusedError{fmt.Errorf("owner %q is the director's own file: change that", owner)}
	}
	k.mu.Lock()
	l := k.fits(k.replace(k.group != nil, owner, services))
	where := k.local
	if k.group != nil {
		where = k.group
	}
	k.mu.Unlock()
	if before, err = where.Read(ctx); err != nil {
		return before, after, err
	}
	after, err = l.change(before)
	return before, after, err
}

func (k *Keeper) put(owner string, services []model.Service) (Change, error) {
	k.mu.Lock()
	l := k.fits(k.replace(k.group != nil, owner, services))
	if k.group != nil {
		k.mu.Unlock()
		return k.putShared(owner, l, len(services))
	}
	defer k.mu.Unlock()
	before := k.state
	after, err := k.update(k.local, l)
	if err != nil {
		return Change{}, err
	}
	k.state = after
	change := changeOf(before, after, owner).withMoves(before, after, owner)
	err = k.apply()
	if err == nil {
		k.log.Info("set applied", "owner", owner, "services", len(services), "revision", after.Revision)
	}
	return change, err
}

// fits returns the ledger whose change is refused where its result does not go together
// with the file or with itself.
func (k *Keeper) fits(l *ledger) *ledger {
	file, write := k.file, l.make
	l.make = func(l *ledger, s store.State) (store.State, error) {
		next, err := write(l, s)
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) {
			err = &RefusedError{err}
		}
		if err == nil {
			_, err = join(file, next)
		}
		return next, err
	}
	return l
}

// changeOf lists what differs between two states of an owner's set.
func changeOf(before, after store.State, owner string) Change {
	change := Change{Revision: after.Revision}
	was := map[model.ServiceID]model.Service{}
	for _, d := range before.Sets[owner].Documents {
		was[d.Service.ID()] = d.Service
	}
	for _, d := range after.Sets[owner].Documents {
		old, had := was[d.Service.ID()]
		switch {
		case !had:
			change.Added = append(change.Added, d.Service.Name)
		case !reflect.DeepEqual(old, d.Service):
			change.Changed = append(change.Changed, d.Service.Name)
		}
		delete(was, d.Service.ID())
	}
	for _, old := range was {
		change.Removed = append(change.Removed, old.Name)
	}
	slices.Sort(change.Removed)
	return change
}

// withMoves adds what becomes of the slots of the services that are changed.
func (c Change) withMoves(before, after store.State, owner string) Change {
	was := map[model.ServiceID]store.Document{}
	for _, d := range before.Sets[owner].Documents {
		was[d.Service.ID()] = d
	}
	from, to := engine.Services{Logs: engine.Logs{}}, engine.Services{Logs: engine.Logs{}}
	for _, d := range after.Sets[owner].Documents {
		id := d.Service.ID()
		old, had := was[id]
		if !had || reflect.DeepEqual(old.Service, d.Service) {
			continue
		}
		from.List, to.List = append(from.List, old.Service), append(to.List, d.Service)
		from.Logs[id], to.Logs[id] = old.Log, d.Log
	}
	c.Moves = engine.Moves(from, to)
	return c
}
