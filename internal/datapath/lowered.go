package datapath

import "weir.io/weir/internal/model"

// mtus are those that an interface has had since this process looked for the first time.
type mtus struct{ first, highest int }

// Lowered are the interfaces whose MTU has become smaller since this process looked for the first
// time. Hosts on the link that still have the former one send longer packets, and most interfaces
// drop those when they come in: the program never sees them, so nobody is told that they are too
// big. Back to the first MTU is no such change: a larger one was tried, and is taken back.
func (d *Datapath) Lowered() (found []model.LoweredMTU) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[int]mtus{} // of those that are there
	for _, link := range d.links {
		if link == nil {
			continue
		}
		attrs := link.Attrs()
		had, known := d.mtus[attrs.Index]
		if !known {
			had.first = attrs.MTU
		}
		if had.highest = max(had.highest, attrs.MTU); attrs.MTU == had.first {
			had.highest = attrs.MTU
		}
		seen[attrs.Index] = had
		if attrs.MTU < had.highest {
			found = append(found, model.LoweredMTU{Interface: attrs.Name, Now: attrs.MTU, Before: had.highest})
		}
	}
	d.mtus = seen
	return found
}
