package upkeep

import (
	"maps"
	"slices"

	"weir.io/weir/internal/model"
)

// MTUs are those that interfaces have had since a process looked for the first time, by the indexes
// of the interfaces.
type MTUs map[int]heardMTUs

type heardMTUs struct{ first, highest int }

// MTU is that of an interface now.
type MTU struct {
	Name       string
	Index, MTU int
}

// Lowered returns the interfaces whose MTU has become smaller since this process looked for the first
// time. Hosts on the link that still have the former one send longer packets, and most interfaces
// drop those when they come in: no program sees them, so nobody is told that they are too big. Back
// to the first MTU is no such change: a larger one was tried, and is taken back.
//
// An interface that is not looked at for a while, because its configuration or its name changes, is
// known until the kernel has no such link any more, which gone says of its index.
func (m *MTUs) Lowered(now []MTU, gone func(index int) bool) (found []model.LoweredMTU) {
	if *m == nil {
		*m = MTUs{}
	}
	for _, is := range now {
		had, known := (*m)[is.Index]
		if !known {
			had.first = is.MTU
		}
		if had.highest = max(had.highest, is.MTU); is.MTU == had.first {
			had.highest = is.MTU
		}
		(*m)[is.Index] = had
		if is.MTU < had.highest {
			found = append(found, model.LoweredMTU{Interface: is.Name, Now: is.MTU, Before: had.highest})
		}
	}
	maps.DeleteFunc(*m, func(index int, _ heardMTUs) bool {
		return !slices.ContainsFunc(now, func(is MTU) bool { return is.Index == index }) && gone(index)
	})
	return found
}
