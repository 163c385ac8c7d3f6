package desired

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// RefusedError says why a request was refused. Nothing was changed.
type RefusedError struct {
	Refusals []Refusal
	Conflict bool // it contradicts another owner's services
}

// Refusal is one problem of a request.
type Refusal struct {
	Owner string // the owner whose set the field is in; empty: the set that was put
	With  string // the owner of the other set of a contradiction; empty: there is none
	model.FieldError
}

// Error names the owner, the field and what is wrong.
func (r Refusal) Error() string {
	text := r.Problem
	if r.Path != "" {
		text = r.FieldError.Error()
	}
	if r.Owner != "" {
		text = fmt.Sprintf("owner %q: %s", r.Owner, text)
	}
	return text
}

// Place returns where the problem is.
func (r Refusal) Place() model.Place { return model.Place{Owner: r.Owner, Field: r.Path} }

// Unwrap returns the single refusals.
func (e *RefusedError) Unwrap() []error {
	list := make([]error, len(e.Refusals))
	for i, r := range e.Refusals {
		list[i] = r
	}
	return list
}

// Error lists everything that is wrong.
func (e *RefusedError) Error() string {
	lines := make([]string, len(e.Refusals))
	for i, r := range e.Refusals {
		lines[i] = r.Error()
	}
	return strings.Join(lines, "\n")
}

// Change is how a set changed: services by their names.
type Change struct {
	Revision                uint64 // of the state that has it
	Tag                     string // of the set
	Added, Changed, Removed []string
	Moves                   []model.Move // what happens to the slots of changed services
}

// Put makes valid services the whole of an owner's set if the condition holds, and returns when
// they are forwarded. Puts of one owner that come within the file's coalesce are one change, made
// in the order in which they came.
func (k *Keeper) Put(ctx context.Context, owner string, services []model.Service, when Condition) (Change, error) {
	return k.PutPart(ctx, owner, services, 1, when)
}

// PutPart does what Put does, for a part of the way from the current set to these services.
func (k *Keeper) PutPart(ctx context.Context, owner string, services []model.Service, part float64, when Condition) (Change, error) {
	return k.submit(ctx, owner, proposal{services: services, part: part, when: when})
}

func (k *Keeper) submit(ctx context.Context, owner string, p proposal) (Change, error) {
	try := p
	if _, _, err := k.tryPut(ctx, owner, &try); err != nil {
		return Change{}, err // a wrong set must not replace another one that waits
	}
	k.mu.Lock()
	wait := time.Duration(k.file.Coalesce)
	k.mu.Unlock()
	b := k.coalesce(owner, wait, func(b *batch) {
		b.puts = append(b.puts, &p)
		b.do = func() (Change, error) { return k.put(owner, b.puts) }
	})
	select {
	case <-b.done:
	case <-ctx.Done():
		return Change{}, ctx.Err()
	}
	if p.err != nil {
		return Change{}, p.err
	}
	return b.change, b.err
}

// Preview returns the configuration and the logs by which a director would forward if these
// services were an owner's set. It changes nothing.
func (k *Keeper) Preview(ctx context.Context, owner string, services []model.Service) (model.Config, engine.Logs, error) {
	_, after, err := k.tryPut(ctx, owner, &proposal{services: services})
	if err != nil {
		return model.Config{}, nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.everything()
	all.Sets[owner] = after.Sets[owner]
	joint, err := k.joined.join(k.file, all, owner)
	if err != nil {
		return model.Config{}, nil, err
	}
	logs, now := engine.Logs{}, time.Now()
	for d := range all.All() {
		id, log := d.Service.ID(), d.Log
		learned := now
		if known, is := k.learned[id]; is && len(log.Generations) > 0 && known.number == log.Generations[0].Number {
			learned = known.at
		}
		log.Coming, _ = history.Coming(log, learned, now)
		logs[id] = log
	}
	return joint, logs, nil
}

// Sets returns what is forwarded, or should be: the sets of all owners and the file's.
func (k *Keeper) Sets() store.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.everything()
	all.Revision = k.state.Revision
	if k.group != nil {
		all.Revision = k.shared.Revision
	}
	return all
}

// tryPut returns the state before and after a put.
func (k *Keeper) tryPut(ctx context.Context, owner string, p *proposal) (before, after store.State, err error) {
	if owner == store.OwnerFile {
		return before, after, &RefusedError{Conflict: true, Refusals: []Refusal{{Owner: owner,
			FieldError: model.FieldError{Problem: "is the director's own file: change that"}}}}
	}
	k.mu.Lock()
	l := k.replaceInTurn(owner, []*proposal{p})
	where := k.local
	if k.group != nil {
		where = k.group
	}
	k.mu.Unlock()
	if before, err = where.Read(ctx); err != nil {
		return before, after, err
	}
	after, err = l.change(before)
	if err == nil {
		err = p.err
	}
	return before, after, err
}

func (k *Keeper) put(owner string, puts []*proposal) (Change, error) {
	k.mu.Lock()
	l := k.replaceInTurn(owner, puts)
	if k.group != nil {
		k.mu.Unlock()
		return k.putShared(owner, l)
	}
	defer k.mu.Unlock()
	before := k.state
	after, err := k.update(k.local, l)
	if err != nil {
		return Change{}, err
	}
	k.state = after
	change := ChangeOf(before, after, owner).withMoves(before, after, owner)
	err = k.apply()
	if err == nil {
		k.log.Info("set applied", "owner", owner, "services", len(after.Sets[owner].Documents), "revision", after.Revision)
	}
	k.tryFileAgain()
	return change, err
}

// replaceInTurn returns the change that makes an owner's puts, one after the other. It is refused
// if its result contradicts the file or itself. It is called with the lock held.
func (k *Keeper) replaceInTurn(owner string, puts []*proposal) *ledger {
	file := k.file
	return k.newLedger(k.group != nil, func(l *ledger, s store.State) (store.State, error) {
		set, had := s.Sets[owner]
		if set.Given && slices.ContainsFunc(puts, func(p *proposal) bool { return p.edit != nil }) {
			return s, given(owner)
		}
		services, replaced := inTurn(set, had, puts)
		if !replaced {
			return s, nil
		}
		next, err := l.replace(s, owner, services)
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) {
			return next, refusalOf(conflict, owner, services)
		}
		if err == nil {
			_, err = k.joined.join(file, next, owner)
		}
		if err == nil {
			err = beyond(file, owner, services)
		}
		return next, err
	})
}

// refusalOf says in which fields of an owner's services two sets contradict each other.
func refusalOf(conflict *store.ConflictError, owner string, services []model.Service) *RefusedError {
	refused := &RefusedError{}
	for _, c := range conflict.All() {
		refused.Refusals = append(refused.Refusals, refusalBy(&c, owner, services))
		refused.Conflict = refused.Conflict || c.Owner != c.Owner2
	}
	return refused
}

func refusalBy(c *store.ConflictError, owner string, services []model.Service) Refusal {
	refusal := Refusal{FieldError: model.FieldError{Problem: c.Error()}}
	name := c.Name2
	if c.Owner2 != owner {
		name = c.Name
	}
	last := 0
	for i := range services {
		if services[i].Name == name {
			last = i
		}
	}
	refusal.Path = fmt.Sprintf("services[%d].vip", last)
	if c.Names {
		refusal.Path = fmt.Sprintf("services[%d].name", last)
	}
	return refusal
}

// ChangeOf lists what differs between two states of an owner's set.
func ChangeOf(before, after store.State, owner string) Change {
	change := Change{Revision: after.Revision, Tag: after.Sets[owner].Tag()}
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

// withMoves adds what happens to the slots of changed services.
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
