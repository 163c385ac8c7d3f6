package desired

import (
	"fmt"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

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
