package desired

import (
	"context"
	"errors"
	"fmt"
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
	// Shared says that it is about what all owners have together.
	Shared bool
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

// Put makes valid services the whole of an owner's set if the condition holds, and returns when
// they are forwarded. Puts of one owner that come within the file's coalesce are one change, made
// in the order in which they came.
func (c *Controller) Put(ctx context.Context, owner string, services []model.Service, when model.SetCondition) (model.SetChange, error) {
	return c.PutPart(ctx, owner, services, 1, when)
}

// PutPart does what Put does, for a part of the way from the current set to these services.
func (c *Controller) PutPart(ctx context.Context, owner string, services []model.Service, part float64, when model.SetCondition) (model.SetChange, error) {
	return c.submit(ctx, owner, proposal{services: services, part: part, when: when})
}

func (c *Controller) submit(ctx context.Context, owner string, p proposal) (model.SetChange, error) {
	try := p
	if _, _, err := c.tryPut(ctx, owner, &try); err != nil {
		return model.SetChange{}, err // a wrong set must not replace another one that waits
	}
	b := c.coalesce(owner, &p)
	select {
	case <-b.done:
	case <-ctx.Done():
		return model.SetChange{}, ctx.Err()
	}
	if p.err != nil {
		return model.SetChange{}, p.err
	}
	return b.change, b.err
}

// Preview returns the configuration and the logs by which a director would forward if these
// services were an owner's set. It changes nothing.
func (c *Controller) Preview(ctx context.Context, owner string, services []model.Service) (model.Config, engine.Logs, error) {
	_, after, err := c.tryPut(ctx, owner, &proposal{services: services})
	if err != nil {
		return model.Config{}, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.everything()
	all.Sets[owner] = after.Sets[owner]
	joint, err := c.joined.join(c.file, all, owner)
	if err != nil {
		return model.Config{}, nil, err
	}
	logs, now := engine.Logs{}, time.Now()
	for d := range all.All() {
		id, log := d.Service.ID(), d.Log
		learned := now
		if known, is := c.learned[id]; is && len(log.Generations) > 0 && known.number == log.Generations[0].Number {
			learned = known.at
		}
		log.Coming, _ = history.Coming(log, learned, now)
		logs[id] = log
	}
	return joint, logs, nil
}

// Sets returns what is forwarded, or should be: the sets of all owners and the file's.
func (c *Controller) Sets() store.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets()
}

// Now returns the sets, the file without its overrides, and these, as they are at one moment.
func (c *Controller) Now() (sets store.State, file model.Config, overrides []model.BackendOverride) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets(), c.given, slices.Clone(c.overrides)
}

// sets is Sets with the lock held.
func (c *Controller) sets() store.State {
	all := c.everything()
	all.Revision = c.state.Revision
	if c.group != nil {
		all.Revision = c.shared.Revision
	}
	return all
}

// tryPut returns the state before and after a put.
func (c *Controller) tryPut(ctx context.Context, owner string, p *proposal) (before, after store.State, err error) {
	if owner == store.OwnerFile {
		return before, after, &RefusedError{Conflict: true, Refusals: []Refusal{{Owner: owner,
			FieldError: model.FieldError{Problem: "is the director's own file: change that"}}}}
	}
	c.mu.Lock()
	l := c.replaceInTurn(owner, []*proposal{p})
	where := c.local
	if c.group != nil {
		where = c.group
	}
	c.mu.Unlock()
	if before, err = where.Read(ctx); err != nil {
		return before, after, err
	}
	after, err = l.change(before)
	if err == nil {
		err = p.err
	}
	return before, after, err
}

func (c *Controller) put(owner string, puts []*proposal) (model.SetChange, error) {
	c.mu.Lock()
	l := c.replaceInTurn(owner, puts)
	if c.group != nil {
		c.mu.Unlock()
		return c.putShared(owner, l)
	}
	defer c.mu.Unlock()
	before := c.state
	after, err := c.update(c.local, l)
	if err != nil {
		return model.SetChange{}, err
	}
	c.state = after
	change := changeWithMoves(before, after, owner)
	err = c.apply()
	if err == nil {
		c.log.Info("set applied", "owner", owner, "services", len(after.Sets[owner].Documents), "revision", after.Revision)
	}
	c.tryFileAgain()
	return change, err
}

// replaceInTurn returns the change that makes an owner's puts, one after the other. It is refused
// if its result contradicts the file or itself. It is called with the lock held.
func (c *Controller) replaceInTurn(owner string, puts []*proposal) *logChange {
	file := c.file
	return c.newLogChange(c.group != nil, func(l *logChange, s store.State) (store.State, error) {
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
			_, err = c.joined.join(file, next, owner)
		}
		if err == nil {
			err = beyond(file, owner, services, s, next)
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
	if refusal.With = c.Owner; c.Owner2 != owner {
		name, refusal.With = c.Name, c.Owner2
	}
	if c.Owner == c.Owner2 {
		refusal.With = ""
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

// ErrOtherSet is returned by Put when the set is not what its condition says.
var ErrOtherSet = errors.New("the set is not the one that this was made for: somebody else has changed it; get it, and make the change again")

// holds judges a set, which may be absent, inside the store's transaction: so one of two Puts for the
// same set is refused.
func holds(c *model.SetCondition, had bool, services []model.Service) bool {
	switch {
	case c.None && had, c.Some && !had:
		return false
	case len(c.Tags) == 0:
		return true
	}
	return had && slices.Contains(c.Tags, store.TagOf(services))
}

// proposal is one Put, or one Edit.
type proposal struct {
	services []model.Service
	part     float64                               // of the way there from the current services; 0: all of it
	edit     func([]model.Service) []model.Service // makes the services from the current ones; nil: they are given
	when     model.SetCondition
	err      error // its own error; an error of the result goes to all callers of the batch
}

// inTurn returns a set after puts that are made one after the other, each as if it were alone:
// those whose condition does not hold change nothing.
func inTurn(set store.Set, had bool, puts []*proposal) (services []model.Service, replaced bool) {
	services = set.Services()
	for _, p := range puts {
		if p.err = nil; !holds(&p.when, had, services) {
			p.err = ErrOtherSet
			continue
		}
		next, err := p.services, error(nil)
		if p.edit != nil {
			next = p.edit(services)
		} else {
			next, err = reveal(next, services)
			if err == nil && p.part > 0 && p.part < 1 {
				next = stage(services, next, p.part, slotsIn(set))
			}
		}
		if p.err = err; err != nil || next == nil && p.edit != nil {
			continue
		}
		services, had, replaced = next, true, true
	}
	return services, replaced
}

// Edit replaces an owner's services by what edit returns for them: edit is called inside the
// store's transaction, perhaps several times, with services that it must not change, and returns
// others, or nil to change nothing.
func (c *Controller) Edit(ctx context.Context, owner string, edit func([]model.Service) []model.Service) (model.SetChange, error) {
	return c.submit(ctx, owner, proposal{edit: edit})
}

// reveal returns services in which each hidden key is again the key that the same service has: so a
// client can put what it got.
func reveal(services, before []model.Service) ([]model.Service, error) {
	hidden := func(s model.Service) bool {
		return slices.ContainsFunc(s.QUIC, func(q model.QUICConfig) bool { return q.Key.Hidden() })
	}
	if !slices.ContainsFunc(services, hidden) {
		return services, nil
	}
	keys := map[model.ServiceID]map[uint8]model.QUICKey{}
	for i := range before {
		for _, q := range before[i].QUIC {
			id := before[i].ID()
			if keys[id] == nil {
				keys[id] = map[uint8]model.QUICKey{}
			}
			keys[id][q.ID] = q.Key
		}
	}
	var refused RefusedError
	services = slices.Clone(services)
	for i := range services {
		if !hidden(services[i]) {
			continue
		}
		services[i].QUIC = slices.Clone(services[i].QUIC)
		for n := range services[i].QUIC {
			q := &services[i].QUIC[n]
			if !q.Key.Hidden() {
				continue
			}
			if q.Key = keys[services[i].ID()][q.ID]; q.Key.IsZero() {
				refused.Refusals = append(refused.Refusals, Refusal{FieldError: model.FieldError{
					Path:    fmt.Sprintf("services[%d].quic[%d].key", i, n),
					Problem: "is what a key is written as that may not be seen, and the service has none to keep: give the key"}})
			}
		}
	}
	if len(refused.Refusals) > 0 {
		return nil, &refused
	}
	return services, nil
}
