package desired

import (
	"errors"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Reporter lists what was asked for and does not run: problems.List.
type Reporter interface {
	Report(kind model.ProblemKind, part string, err error)
	Warn(kind model.ProblemKind, part string, err error)
}

// nobody is a Reporter that tells no one.
type nobody struct{}

func (nobody) Report(model.ProblemKind, string, error) {}
func (nobody) Warn(model.ProblemKind, string, error)   {}

// The parts of problems of kind store and set.
const (
	partGroup = "group" // the group's state
	partFile  = "file"  // the set of the director's file
	partLogs  = "logs"  // of this director's own sets
)

// refused holds the file and the state that were asked for and contradict what runs. They
// are tried again when what runs changes.
type refused struct {
	file   *model.Config
	shared *store.State // of the group
}

// refuseFile notes a version of the file that contradicts the sets. The lock is held.
func (c *Controller) refuseFile(config model.Config, err error) {
	c.unstored, c.refused.file = nil, &config
	c.problems.Report(model.ProblemFile, "", err)
}

// tryFileAgain has a refused version of the file tried again, now that something else has changed.
// The lock is held.
func (c *Controller) tryFileAgain() {
	if c.refused.file != nil {
		c.unstored, c.refused.file = c.refused.file, nil
		c.wake()
	}
}

// adoptRefused follows a refused state of the group, if it no longer contradicts the rest. The lock
// is held.
func (c *Controller) adoptRefused() {
	if c.refused.shared == nil {
		return
	}
	_, err := c.joined.join(c.file, c.with(*c.refused.shared), "")
	c.problems.Report(model.ProblemSet, partGroup, err)
	if c.sharedErr = err; err == nil {
		c.shared, c.refused.shared = *c.refused.shared, nil
	}
}

// Start is SetFile for the first version of a process. If it, or the group's state, is refused,
// what ran before goes on: it tries the group's last state that ran here, the version of the file
// that ran (nil: it is not known), or this version with the services of the one that ran. The
// refused one is on the list, and is tried again when something else changes.
func (c *Controller) Start(config model.Config, ran *model.Config) error {
	err := c.SetFile(config)
	if errors.As(err, new(*PendingError)) && c.stored() && c.startAsItRan(config, ran) {
		return c.SetFile(config) // the kernel does not take it: what ran goes on until it does
	}
	if !errors.As(err, new(*RefusedError)) {
		return err
	}
	files, states := c.toTry(config, ran)
	files = append(files, c.withStoredServices(config))
	for s := range states {
		for f := range files {
			if s+f > 0 && c.goesOn(states[s], files[f]) {
				return c.start(states[s], files[f], s > 0, f > 0, states[0], config, err)
			}
		}
	}
	return err
}

// GoesWith reports whether a version of the file goes together with the sets of a director's own store, and those
// of its group if it is in one. A director asks it before there is a controller, because the kernel's maps are made
// for the version that Start is going to go on with.
func GoesWith(config model.Config, own, shared store.State, inGroup bool) bool {
	var j joined
	_, err := j.join(config, allSets(own, shared, inGroup), store.OwnerFile)
	return err == nil
}

// toTry returns what a start tries: this version of the file and the group's state, then those that
// ran, if they are others.
func (c *Controller) toTry(config model.Config, ran *model.Config) (files []model.Config, states []store.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	files, states = []model.Config{config}, []store.State{c.shared}
	if ran != nil {
		files = append(files, *ran)
	}
	if c.ranBefore != nil && c.ranBefore.Revision != c.shared.Revision {
		states = append(states, *c.ranBefore)
	}
	return files, states
}

// stored reports whether the file is stored.
func (c *Controller) stored() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unstored == nil
}

// withStoredServices returns a version of the file with the services of the one that was stored
// last: only a version that is compatible with the sets is ever stored.
func (c *Controller) withStoredServices(config model.Config) model.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	config.Services = c.storedServices()
	return config
}

// storedServices returns the services of the file that was stored last, as the file gave them: the
// stored ones have the overrides. The lock is held.
func (c *Controller) storedServices() []model.Service {
	list := slices.Clone(c.overrides)
	for i := range list {
		list[i].State = model.Active // nothing else is overridden
	}
	return overriding(c.state.Sets[store.OwnerFile].Services(), list)
}

// goesOn reports whether a state of the group and a version of the file are compatible.
func (c *Controller) goesOn(shared store.State, config model.Config) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.joined.join(config, c.with(shared), store.OwnerFile)
	return err == nil
}

// start starts with what ran before, and remembers what was refused.
func (c *Controller) start(shared store.State, config model.Config, otherState, otherFile bool, current store.State, wanted model.Config, why error) error {
	c.mu.Lock()
	if otherState {
		c.shared, c.refused.shared = shared, &current
	}
	c.mu.Unlock()
	err := c.SetFile(config)
	if otherFile && !errors.As(err, new(*RefusedError)) {
		c.mu.Lock()
		c.refuseFile(wanted, why)
		c.mu.Unlock()
	}
	return err
}

// File returns the version of the file that is followed: an earlier one, if the last one is
// refused.
func (c *Controller) File() model.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given
}
