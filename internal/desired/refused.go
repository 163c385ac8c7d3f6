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
func (k *Keeper) refuseFile(c model.Config, err error) {
	k.unstored, k.refused.file = nil, &c
	k.problems.Report(model.ProblemFile, "", err)
}

// tryFileAgain has a refused version of the file tried again, now that something else has changed.
// The lock is held.
func (k *Keeper) tryFileAgain() {
	if k.refused.file != nil {
		k.unstored, k.refused.file = k.refused.file, nil
		k.wake()
	}
}

// takeShared follows a refused state of the group, if it no longer contradicts the rest. The lock
// is held.
func (k *Keeper) takeShared() {
	if k.refused.shared == nil {
		return
	}
	_, err := k.joined.join(k.file, k.with(*k.refused.shared), "")
	k.problems.Report(model.ProblemSet, partGroup, err)
	if k.sharedErr = err; err == nil {
		k.shared, k.refused.shared = *k.refused.shared, nil
	}
}

// Begin is SetFile for the first version of a process. If it, or the group's state, is refused,
// what ran before goes on: it tries the group's last state that ran here, the version of the file
// that ran (nil: it is not known), or this version with the services of the one that ran. The
// refused one is on the list, and is tried again when something else changes.
func (k *Keeper) Begin(c model.Config, ran *model.Config) error {
	err := k.SetFile(c)
	if errors.As(err, new(*PendingError)) && k.stored() && k.beginAsItRan(c, ran) {
		return k.SetFile(c) // the kernel does not take it: what ran goes on until it does
	}
	if !errors.As(err, new(*RefusedError)) {
		return err
	}
	files, states := k.toTry(c, ran)
	files = append(files, k.withStoredServices(c))
	for s := range states {
		for f := range files {
			if s+f > 0 && k.goesOn(states[s], files[f]) {
				return k.begin(states[s], files[f], s > 0, f > 0, states[0], c, err)
			}
		}
	}
	return err
}

// toTry returns what a start tries: this version of the file and the group's state, then those that
// ran, if they are others.
func (k *Keeper) toTry(c model.Config, ran *model.Config) (files []model.Config, states []store.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	files, states = []model.Config{c}, []store.State{k.shared}
	if ran != nil {
		files = append(files, *ran)
	}
	if k.ranBefore != nil && k.ranBefore.Revision != k.shared.Revision {
		states = append(states, *k.ranBefore)
	}
	return files, states
}

// stored reports whether the file is stored.
func (k *Keeper) stored() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.unstored == nil
}

// withStoredServices returns a version of the file with the services of the one that was stored
// last: only a version that is compatible with the sets is ever stored.
func (k *Keeper) withStoredServices(c model.Config) model.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	c.Services = k.storedServices()
	return c
}

// storedServices returns the services of the file that was stored last, as the file gave them: the
// stored ones have the overrides. The lock is held.
func (k *Keeper) storedServices() []model.Service {
	list := slices.Clone(k.overrides)
	for i := range list {
		list[i].State = model.Active // nothing else is overridden
	}
	return overriding(k.state.Sets[store.OwnerFile].Services(), list)
}

// goesOn reports whether a state of the group and a version of the file are compatible.
func (k *Keeper) goesOn(shared store.State, c model.Config) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.joined.join(c, k.with(shared), store.OwnerFile)
	return err == nil
}

// begin begins with what ran before, and remembers what was refused.
func (k *Keeper) begin(shared store.State, c model.Config, otherState, otherFile bool, current store.State, wanted model.Config, why error) error {
	k.mu.Lock()
	if otherState {
		k.shared, k.refused.shared = shared, &current
	}
	k.mu.Unlock()
	err := k.SetFile(c)
	if otherFile && !errors.As(err, new(*RefusedError)) {
		k.mu.Lock()
		k.refuseFile(wanted, why)
		k.mu.Unlock()
	}
	return err
}

// File returns the version of the file that is followed: an earlier one, if the last one is
// refused.
func (k *Keeper) File() model.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.given
}
