package desired

import (
	"context"
	"maps"
	"slices"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Past keeps the sets that ran until their successors have run: a store.File.
type Past interface {
	// Before returns the sets that ran, of owners whose stored sets have not run yet.
	Before() map[string]store.Set
	// Ran says that the stored sets run.
	Ran() error
}

// revisions are the revision of this director's own sets, and that of the group's state.
type revisions struct{ own, shared uint64 }

// runsPause is the time between two checks whether a change that was not taken at once runs by now.
const runsPause = time.Second

// followRuns notes what runs by now, until the context ends.
func (k *Keeper) followRuns(ctx context.Context) {
	tick := time.NewTicker(runsPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.noteRuns()
		}
	}
}

// Running returns the version of the file that is followed, and whether it runs, with all sets.
func (k *Keeper) Running() (file model.Config, runs bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.given, k.run()
}

// Behind returns the owners whose stored sets do not run: their sets that ran before are kept.
func (k *Keeper) Behind() []string {
	if k.past == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(k.past.Before()))
}

// run reports whether the kernel has taken what is stored. The lock is held.
func (k *Keeper) run() bool {
	return k.begun && k.instead == nil && k.handed == revisions{k.state.Revision, k.shared.Revision} && k.engine.Runs()
}

// KeepPast says whether what ran before is kept, although its successor runs: until packets are let in,
// a start may still fail and the next one go on with it.
func (k *Keeper) KeepPast(keep bool) {
	k.noting.Lock()
	defer k.noting.Unlock()
	k.keepPast = keep
}

// noteRuns makes the stores forget what ran before when its successor runs, for this director's own
// sets and the group's state. It is not for concurrent use.
func (k *Keeper) noteRuns() {
	k.noting.Lock()
	defer k.noting.Unlock()
	k.mu.Lock()
	now, runs := k.handed, k.run()
	if runs && k.refused.shared == nil {
		k.sharedErr = nil // the kernel has taken it by now
	}
	k.mu.Unlock()
	if !runs || k.keepPast || now == k.noted {
		return
	}
	var errs [2]error
	if k.past != nil {
		errs[0] = k.past.Ran()
		k.problems.Warn(model.ProblemStore, "what ran before", errs[0])
	}
	if k.group != nil {
		errs[1] = k.group.Ran(now.shared)
		k.problems.Warn(model.ProblemStore, partGroup+"'s last known state", errs[1])
	}
	if errs[0] == nil && errs[1] == nil {
		k.noted = now
	}
}

// beginAsItRan makes the director forward by what ran before, or by as much of it as makes the
// kernel take it: the sets, the group's state, the version of the file. It reports whether that
// works.
func (k *Keeper) beginAsItRan(c model.Config, ran *model.Config) bool {
	files, states := k.toTry(c, ran)
	sets := []map[string]store.Set{nil}
	if k.past != nil && len(k.past.Before()) > 0 {
		sets = append(sets, k.past.Before())
	}
	defer k.tryInstead(states[0], nil)
	for f := range files {
		for s := range states {
			for n := range sets {
				if f+s+n == 0 {
					continue // the kernel has refused that state
				}
				k.tryInstead(states[s], sets[n])
				if k.SetFile(files[f]) == nil {
					return true
				}
			}
		}
	}
	return false
}

// tryInstead makes these the sets that are tried.
func (k *Keeper) tryInstead(shared store.State, own map[string]store.Set) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shared, k.instead = shared, own
}
