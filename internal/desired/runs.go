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
func (c *Controller) followRuns(ctx context.Context) {
	tick := time.NewTicker(runsPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.noteRuns()
		}
	}
}

// Running returns the version of the file that is followed, and whether it runs, with all sets.
func (c *Controller) Running() (file model.Config, runs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given, c.run()
}

// Behind returns the owners whose stored sets do not run: their sets that ran before are kept.
func (c *Controller) Behind() []string {
	if c.past == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(c.past.Before()))
}

// run reports whether the kernel has taken what is stored. The lock is held.
func (c *Controller) run() bool {
	return c.begun && c.instead == nil && c.handed == revisions{c.state.Revision, c.shared.Revision} && c.engine.Runs()
}

// KeepPast says whether what ran before is kept, although its successor runs: until packets are let in,
// a start may still fail and the next one go on with it.
func (c *Controller) KeepPast(keep bool) {
	c.noting.Lock()
	defer c.noting.Unlock()
	c.keepPast = keep
}

// noteRuns makes the stores forget what ran before when its successor runs, for this director's own
// sets and the group's state. It is not for concurrent use.
func (c *Controller) noteRuns() {
	c.noting.Lock()
	defer c.noting.Unlock()
	c.mu.Lock()
	now, runs := c.handed, c.run()
	if runs && c.refused.shared == nil {
		c.sharedErr = nil // the kernel has taken it by now
	}
	c.mu.Unlock()
	if !runs || c.keepPast || now == c.noted {
		return
	}
	var errs [2]error
	if c.past != nil {
		errs[0] = c.past.Ran()
		c.problems.Warn(model.ProblemStore, "what ran before", errs[0])
	}
	if c.group != nil {
		errs[1] = c.group.Ran(now.shared)
		c.problems.Warn(model.ProblemStore, partGroup+"'s last known state", errs[1])
	}
	if errs[0] == nil && errs[1] == nil {
		c.noted = now
	}
}

// startAsItRan makes the director forward by what ran before, or by as much of it as makes the
// kernel take it: the sets, the group's state, the version of the file. It reports whether that
// works.
func (c *Controller) startAsItRan(config model.Config, ran *model.Config) bool {
	files, states := c.toTry(config, ran)
	sets := []map[string]store.Set{nil}
	if c.past != nil && len(c.past.Before()) > 0 {
		sets = append(sets, c.past.Before())
	}
	defer c.tryInstead(states[0], nil)
	for f := range files {
		for s := range states {
			for n := range sets {
				if f+s+n == 0 {
					continue // the kernel has refused that state
				}
				c.tryInstead(states[s], sets[n])
				if c.SetFile(files[f]) == nil {
					return true
				}
			}
		}
	}
	return false
}

// tryInstead makes these the sets that are tried.
func (c *Controller) tryInstead(shared store.State, own map[string]store.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shared, c.instead = shared, own
}
