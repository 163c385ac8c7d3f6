package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Group is the store that the directors of a group share.
type Group interface {
	Store
	// Watch sends the state, as soon as it can be read, and every later one.
	Watch(context.Context) <-chan store.State
	// Cached returns the last state that ran here, if it is known.
	Cached() (s store.State, found bool, err error)
	// Ran says that a state that Watch has sent runs.
	Ran(revision uint64) error
}

// Join makes the sets those that a group shares, and returns when their state is known: the current
// one from the group's store, or the last one that this director knew if the store does not answer
// within the patience. If there is neither it waits: forwarding without the sets would be wrong. It
// is called before SetFile. The context is that of Run, which follows the store's state when the
// store is back.
func (c *Controller) Join(ctx context.Context, g Group, patience time.Duration) (current bool, err error) {
	mine, err := c.local.Read(ctx)
	if err != nil {
		return false, err
	}
	known, found, err := g.Cached()
	if err != nil {
		err = fmt.Errorf("the group's last known state is lost: %w", err)
	}
	c.problems.Warn(model.ProblemStore, partGroup+"'s last known state", err)
	c.mu.Lock()
	c.group, c.news, c.state = g, g.Watch(ctx), mine
	if found {
		c.ranBefore = &known
	}
	c.reportLeftovers()
	c.mu.Unlock()
	over := time.NewTimer(patience)
	defer over.Stop()
	for {
		select {
		case s, open := <-c.news:
			if !open {
				return false, ctx.Err()
			}
			if lost(known, s) {
				c.problems.Report(model.ProblemStore, partGroup, errStoreIsEmpty)
				s = known
			}
			c.shared = s
			return true, nil
		case <-over.C:
			if found {
				c.log.Warn("etcd does not answer: the group's last known state is used", "revision", known.Revision)
				c.shared = known
				return false, nil
			}
			c.log.Warn("etcd does not answer, and no state of the group is known here: waiting; what is pinned goes on forwarding")
		}
	}
}

// errStoreIsEmpty is the error when a group's store has lost its state.
var errStoreIsEmpty = errors.New("the group's store is empty, and was not: what runs goes on until a set is applied")

// lost reports whether the successor of a state is a store that never had a set. Owners remove
// their services by empty sets, which are a revision.
func lost(before, after store.State) bool { return before.Revision > 0 && after.Revision == 0 }

// adopt makes the director forward by the group's state, if that is compatible with the rest.
func (c *Controller) adopt(s store.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lost(c.shared, s) {
		c.problems.Report(model.ProblemStore, partGroup, errStoreIsEmpty)
		return
	}
	c.problems.Report(model.ProblemStore, partGroup, nil)
	c.refused.shared = &s
	err := c.apply()
	if c.refused.shared == nil { // the state is compatible: the error is another one, which is on the list
		if c.sharedErr = err; err == nil {
			c.log.Info("the group's state runs", "revision", s.Revision, "services", s.Count())
		}
		c.tryFileAgain()
	}
	close(c.adopted)
	c.adopted = make(chan struct{})
}

// heard is the group's revision that was last heard of, also if it is refused. The lock is held.
func (c *Controller) heard() uint64 {
	if c.refused.shared != nil {
		return c.refused.shared.Revision
	}
	return c.shared.Revision
}

// await returns when the director forwards by a revision of the group, or why it does not.
func (c *Controller) await(ctx context.Context, revision uint64) error {
	for {
		c.mu.Lock()
		there, err, next := c.heard() >= revision, c.sharedErr, c.adopted
		c.mu.Unlock()
		if there {
			return err
		}
		select {
		case <-next:
		case <-ctx.Done():
			return &PendingError{errors.New("etcd has it, and does not tell this director")}
		}
	}
}

// Problem returns why the director does not forward by the group's state, or nil.
func (c *Controller) Problem() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sharedErr
}

// everything is the state of all sets, this director's and the group's.
func (c *Controller) everything() store.State { return c.with(c.shared) }

// with is the same with another state of the group. A director of a group has as its own sets the
// file's, and what is left from before it joined.
func (c *Controller) with(shared store.State) store.State {
	all := allSets(c.state, shared, c.group != nil)
	for owner, set := range c.instead {
		if c.group == nil || owner == store.OwnerFile || c.isLeftover(owner) {
			all.Sets[owner] = set
		}
	}
	return all
}

// allSets are the sets of a director's own store and its group's.
func allSets(own, shared store.State, inGroup bool) store.State {
	all := store.State{Sets: maps.Clone(shared.Sets)}
	if all.Sets == nil {
		all.Sets = map[string]store.Set{}
	}
	for owner, set := range own.Sets {
		if !inGroup || owner == store.OwnerFile || len(set.Documents) > 0 {
			all.Sets[owner] = set
		}
	}
	return all
}

// putShared is put for a set that the group shares. No lock is held while etcd is asked: what other
// directors write meanwhile is applied, and the change is made again from it.
func (c *Controller) putShared(owner string, l *logChange) (model.SetChange, error) {
	c.mu.Lock()
	before := c.shared
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), updateTimeout)
	defer cancel()
	after, err := c.group.Update(ctx, l.change)
	if err != nil {
		return model.SetChange{}, err
	}
	c.mu.Lock()
	c.settle(l)
	c.mu.Unlock()
	c.log.Info("set stored", "owner", owner, "services", len(after.Sets[owner].Documents), "revision", after.Revision)
	if err := c.giveUp(owner, after.Revision); err != nil {
		return model.SetChange{}, err
	}
	return changeWithMoves(before, after, owner), c.await(ctx, after.Revision)
}

// tendShared makes the changes that are due in the logs of the group's services. All directors
// do so, and the first one leaves nothing to do for the others.
func (c *Controller) tendShared() error {
	c.renew()
	c.mu.Lock()
	c.comparedShared = time.Now()
	l := c.trim(true)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), updateTimeout)
	defer cancel()
	_, err := c.group.Update(ctx, l.change)
	if err == nil {
		c.mu.Lock()
		c.settle(l)
		c.mu.Unlock()
	}
	return err
}

// leftoverError is a set that this director kept alone before it joined its group.
type leftoverError struct{ owner string }

// Error says which set runs.
func (e *leftoverError) Error() string {
	return fmt.Sprintf("owner %q has a set that is kept by this director alone, and runs here in the place of the group's", e.owner)
}

// Fix says how the group gets it.
func (e *leftoverError) Fix() string {
	return "apply the owner's set to this director: it is the group's then, with its connections; or end the director, remove the file and start it again"
}

// Place returns the set's owner.
func (e *leftoverError) Place() model.Place { return model.Place{Owner: e.owner} }

// isLeftover reports whether a set of this director's own store is one from before it joined a
// group. An empty one does not count: it does not hide the group's.
func (c *Controller) isLeftover(owner string) bool {
	return c.group != nil && owner != store.OwnerFile && len(c.state.Sets[owner].Documents) > 0
}

// reportLeftovers lists the leftover sets as problems. The lock is held.
func (c *Controller) reportLeftovers() {
	for _, owner := range c.state.Owners() {
		var err error
		if c.isLeftover(owner) {
			err = &leftoverError{owner}
		}
		if owner != store.OwnerFile {
			c.problems.Report(model.ProblemStore, owner, err)
		}
	}
}

// giveUp empties a set from before this director joined its group: the group has the owner's set
// now, at this revision.
func (c *Controller) giveUp(owner string, revision uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isLeftover(owner) {
		return nil
	}
	after, err := c.update(c.local, c.replaceWith(false, owner, nil))
	if err != nil {
		return fmt.Errorf("empty the set that this director has kept alone: %w", err)
	}
	c.state = after
	c.reportLeftovers()
	if c.shared.Revision >= revision {
		return c.apply()
	}
	return nil // the new state is applied with it
}
