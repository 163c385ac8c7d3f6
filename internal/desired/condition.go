package desired

import (
	"errors"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Condition is what must hold for an owner's set before a Put replaces it. The zero value demands
// nothing. It is judged inside the store's transaction, so one of two Puts for the same set is
// refused.
type Condition struct {
	Tags []string // one of them is the set's: see store.TagOf
	Some bool     // there is a set
	None bool     // there is no set
}

// ErrOtherSet is returned by Put when the set is not what its condition says.
var ErrOtherSet = errors.New("the set is not the one that this was made for: somebody else has changed it; get it, and make the change again")

// holds judges a set, which may be absent.
func (c *Condition) holds(had bool, services []model.Service) bool {
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
	when     Condition
	err      error // its own error; an error of the result goes to all callers of the batch
}

// inTurn returns a set after puts that are made one after the other, each as if it were alone:
// those whose condition does not hold change nothing.
func inTurn(set store.Set, had bool, puts []*proposal) (services []model.Service, replaced bool) {
	services = set.Services()
	for _, p := range puts {
		if p.err = nil; !p.when.holds(had, services) {
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
