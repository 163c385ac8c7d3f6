package desired

import (
	"context"
	"maps"
	"slices"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Past has what ran, as long as what replaced it has not: a store.File.
type Past interface {
	// Before returns the sets that ran, of owners whose stored sets have not run yet.
	Before() map[string]store.Set
	// Ran says that the stored sets run.
	Ran() error
}

// Remember makes a start go on with the sets that ran where the kernel does not take those that are
// stored. It is called before Join and Begin.
func (k *Keeper) Remember(past Past) { k.past = past }

// revisions are those of a state of this director's own sets, and of one of the group's.
type revisions struct{ own, shared uint64 }

// runsPause is how often it is looked whether what was not taken at once runs by now.
const runsPause = time.Second

// followRuns notes what has come to run, until the context ends.
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

// Behind returns the owners whose stored sets do not run: what ran of them before is kept.
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

// noteRuns has what ran before forgotten when its successor runs, of this director's own sets and
// of the group's state. It is not called by several at a time.
func (k *Keeper) noteRuns() {
	k.noting.Lock()
	defer k.noting.Unlock()
	k.mu.Lock()
	now, runs := k.handed, k.run()
	if runs && k.refused.shared == nil {
		k.sharedErr = nil // the kernel has taken it by now
	}
	k.mu.Unlock()
	if !runs || now == k.noted {
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

// beginAsItRan makes what ran before what is forwarded, or as much of it as the kernel needs to
// take it: the sets, the group's state, the version of the file. It reports whether that goes.
func (k *Keeper) beginAsItRan(c model.Config, ran *model.Config) bool {
	k.mu.Lock()
	current, known := k.shared, k.ranBefore
	k.mu.Unlock()
	files := []model.Config{c}
	if ran != nil {
		files = append(files, *ran)
	}
	states := []store.State{current}
	if known != nil && known.Revision != current.Revision {
		states = append(states, *known)
	}
	sets := []map[string]store.Set{nil}
	if k.past != nil && len(k.past.Before()) > 0 {
		sets = append(sets, k.past.Before())
	}
	defer k.tryInstead(current, nil)
	for f := range files {
		for s := range states {
			for n := range sets {
				if f+s+n == 0 {
					continue // that is what the kernel has refused
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
