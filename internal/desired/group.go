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
func (k *Keeper) Join(ctx context.Context, g Group, patience time.Duration) (current bool, err error) {
	mine, err := k.local.Read(ctx)
	if err != nil {
		return false, err
	}
	known, found, err := g.Cached()
	if err != nil {
		err = fmt.Errorf("the group's last known state is lost: %w", err)
	}
	k.problems.Warn(model.ProblemStore, partGroup+"'s last known state", err)
	k.mu.Lock()
	k.group, k.news, k.state = g, g.Watch(ctx), mine
	if found {
		k.ranBefore = &known
	}
	k.tellLeftovers()
	k.mu.Unlock()
	over := time.NewTimer(patience)
	defer over.Stop()
	for {
		select {
		case s, open := <-k.news:
			if !open {
				return false, ctx.Err()
			}
			if lost(known, s) {
				k.problems.Report(model.ProblemStore, partGroup, errStoreIsEmpty)
				s = known
			}
			k.shared = s
			return true, nil
		case <-over.C:
			if found {
				k.log.Warn("etcd does not answer: the group's last known state is used", "revision", known.Revision)
				k.shared = known
				return false, nil
			}
			k.log.Warn("etcd does not answer, and no state of the group is known here: waiting; what is pinned goes on forwarding")
		}
	}
}

// errStoreIsEmpty is the error when a group's store has lost its state.
var errStoreIsEmpty = errors.New("the group's store is empty, and was not: what runs goes on until a set is applied")

// lost reports whether the successor of a state is a store that never had a set. Owners remove
// their services by empty sets, which are a revision.
func lost(before, after store.State) bool { return before.Revision > 0 && after.Revision == 0 }

// adopt makes the director forward by the group's state, if that is compatible with the rest.
func (k *Keeper) adopt(s store.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if lost(k.shared, s) {
		k.problems.Report(model.ProblemStore, partGroup, errStoreIsEmpty)
		return
	}
	k.problems.Report(model.ProblemStore, partGroup, nil)
	k.refused.shared = &s
	err := k.apply()
	if k.refused.shared == nil { // the state is compatible: the error is another one, which is on the list
		if k.sharedErr = err; err == nil {
			k.log.Info("the group's state runs", "revision", s.Revision, "services", s.Count())
		}
		k.tryFileAgain()
	}
	close(k.adopted)
	k.adopted = make(chan struct{})
}

// heard is the group's revision that was last heard of, also if it is refused. The lock is held.
func (k *Keeper) heard() uint64 {
	if k.refused.shared != nil {
		return k.refused.shared.Revision
	}
	return k.shared.Revision
}

// await returns when the director forwards by a revision of the group, or why it does not.
func (k *Keeper) await(ctx context.Context, revision uint64) error {
	for {
		k.mu.Lock()
		there, err, next := k.heard() >= revision, k.sharedErr, k.adopted
		k.mu.Unlock()
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
func (k *Keeper) Problem() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sharedErr
}

// everything is the state of all sets, this director's and the group's.
func (k *Keeper) everything() store.State { return k.with(k.shared) }

// with is the same with another state of the group. A director of a group has as its own sets the
// file's, and what is left from before it joined.
func (k *Keeper) with(shared store.State) store.State {
	all := store.State{Sets: maps.Clone(shared.Sets)}
	if all.Sets == nil {
		all.Sets = map[string]store.Set{}
	}
	for owner, set := range k.state.Sets {
		if k.group == nil || owner == store.OwnerFile || k.isLeftover(owner) {
			all.Sets[owner] = set
		}
	}
	for owner, set := range k.instead {
		if k.group == nil || owner == store.OwnerFile || k.isLeftover(owner) {
			all.Sets[owner] = set
		}
	}
	return all
}

// putShared is put for a set that the group shares. No lock is held while etcd is asked: what other
// directors write meanwhile is applied, and the change is made again from it.
func (k *Keeper) putShared(owner string, l *logChange) (model.SetChange, error) {
	k.mu.Lock()
	before := k.shared
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), updateTimeout)
	defer cancel()
	after, err := k.group.Update(ctx, l.change)
	if err != nil {
		return model.SetChange{}, err
	}
	k.mu.Lock()
	k.settle(l)
	k.mu.Unlock()
	k.log.Info("set stored", "owner", owner, "services", len(after.Sets[owner].Documents), "revision", after.Revision)
	if err := k.giveUp(owner, after.Revision); err != nil {
		return model.SetChange{}, err
	}
	return changeWithMoves(before, after, owner), k.await(ctx, after.Revision)
}

// tendShared makes the changes that are due in the logs of the group's services. All directors
// do so, and the first one leaves nothing to do for the others.
func (k *Keeper) tendShared() error {
	k.renew()
	k.mu.Lock()
	k.comparedShared = time.Now()
	l := k.trim(true)
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), updateTimeout)
	defer cancel()
	_, err := k.group.Update(ctx, l.change)
	if err == nil {
		k.mu.Lock()
		k.settle(l)
		k.mu.Unlock()
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
func (k *Keeper) isLeftover(owner string) bool {
	return k.group != nil && owner != store.OwnerFile && len(k.state.Sets[owner].Documents) > 0
}

// tellLeftovers lists the leftover sets as problems. The lock is held.
func (k *Keeper) tellLeftovers() {
	for _, owner := range k.state.Owners() {
		var err error
		if k.isLeftover(owner) {
			err = &leftoverError{owner}
		}
		if owner != store.OwnerFile {
			k.problems.Report(model.ProblemStore, owner, err)
		}
	}
}

// giveUp empties a set from before this director joined its group: the group has the owner's set
// now, at this revision.
func (k *Keeper) giveUp(owner string, revision uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isLeftover(owner) {
		return nil
	}
	after, err := k.update(k.local, k.replaceWith(false, owner, nil))
	if err != nil {
		return fmt.Errorf("empty the set that this director has kept alone: %w", err)
	}
	k.state = after
	k.tellLeftovers()
	if k.shared.Revision >= revision {
		return k.apply()
	}
	return nil // the new state is applied with it
}
