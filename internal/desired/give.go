package desired

import (
	"context"
	"errors"
	"fmt"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Give makes valid documents the whole of an owner's set, and returns when they are what is
// forwarded. Their logs are used unchanged until the next are given: the client that gives them
// writes them for several directors. The sets that a group's directors share in a store have logs
// of the group, so none can be given for them.
func (c *Controller) Give(_ context.Context, owner string, documents []model.Document) (model.SetChange, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if why := c.refuses(owner); why != "" {
		return model.SetChange{}, &RefusedError{Conflict: true, Refusals: []Refusal{{Owner: owner, FieldError: model.FieldError{Problem: why}}}}
	}
	before := c.state
	after, err := c.update(c.local, c.giving(owner, documents))
	if err != nil {
		return model.SetChange{}, err
	}
	c.state = after
	if after.Revision == before.Revision {
		return ChangeOf(before, after, owner), nil // it runs already, or is tried again
	}
	change := ChangeOf(before, after, owner)
	if err = c.apply(); err == nil {
		c.log.Info("set applied", "owner", owner, "services", len(documents), "revision", after.Revision, "logs", "given")
	}
	return change, err
}

func (c *Controller) refuses(owner string) string {
	switch {
	case owner == store.OwnerFile:
		return "is the director's own file: change that"
	case c.group != nil:
		return "the group's directors write the logs of its sets: put the set without logs"
	}
	return ""
}

// giving returns the store's change that gives documents. The lock is held.
func (c *Controller) giving(owner string, documents []model.Document) *logChange {
	file := c.file
	return c.newLogChange(false, func(_ *logChange, s store.State) (store.State, error) {
		next, err := store.Give(owner, documents)(s)
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) {
			return next, refusalOf(conflict, owner, store.Set{Documents: documents}.Services())
		}
		if err == nil {
			_, err = c.joined.join(file, next, owner)
		}
		if err == nil {
			err = beyond(file, owner, store.Set{Documents: documents}.Services(), s, next)
		}
		return next, err
	})
}

// given refuses to change some services of a set whose logs are given: the other directors,
// which have the same ones, would not learn of it.
func given(owner string) error {
	return &RefusedError{Conflict: true, Refusals: []Refusal{{Owner: owner,
		FieldError: model.FieldError{Problem: fmt.Sprintf("the set of owner %q comes with its logs, which other directors have, too: change it where it comes from", owner)}}}}
}
