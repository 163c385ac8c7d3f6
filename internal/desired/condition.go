package desired

import (
	"errors"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Condition is what must be so of an owner's set for a Put to replace it. The zero value
// is nothing. It is judged inside of the store's transaction, so of two that were made for
// the same set one is refused.
type Condition struct {
	Tags []string // one of them is the set's: see store.TagOf
	Some bool     // there is a set
	None bool     // there is none
}

// ErrOtherSet is returned by Put when the set is not what its condition says.
var ErrOtherSet = errors.New("the set is not the one that this was made for: somebody else has changed it; get it, and make the change again")

// holds judges a set that there is, or is not.
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
	part     float64                               // of the way there from those that there are; 0: all of it
	edit     func([]model.Service) []model.Service // makes them of those that there are; nil: they are given
	when     Condition
	err      error // of its own; what is wrong with the result is told all who came together
}

// inTurn returns what becomes of a set when puts are made one after the other, each as if
// it had been alone: those whose condition does not hold make nothing of it.
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
