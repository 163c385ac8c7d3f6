package upkeep

import "weir.io/weir/internal/model"

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
func (m *MTUs) Lowered(now []MTU) (found []model.LoweredMTU) {
	seen := MTUs{} // of those that are there
	for _, is := range now {
		had, known := (*m)[is.Index]
		if !known {
			had.first = is.MTU
		}
		if had.highest = max(had.highest, is.MTU); is.MTU == had.first {
			had.highest = is.MTU
		}
		seen[is.Index] = had
		if is.MTU < had.highest {
			found = append(found, model.LoweredMTU{Interface: is.Name, Now: is.MTU, Before: had.highest})
		}
	}
	*m = seen
	return found
}
