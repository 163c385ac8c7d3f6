package datapath

import "weir.io/weir/internal/model"

// Lowered are the interfaces whose MTU has become smaller since this process looked for the first
// time. Hosts on the link that still have the former one send longer packets, and most interfaces
// drop those when they come in: the program never sees them, so nobody is told that they are too
// big.
func (d *Datapath) Lowered() (found []model.LoweredMTU) {
	d.mu.Lock()
	defer d.mu.Unlock()
	highest := map[int]int{} // of those that are there
	for _, link := range d.links {
		if link == nil {
			continue
		}
		attrs := link.Attrs()
		had := max(d.highestMTU[attrs.Index], attrs.MTU)
		highest[attrs.Index] = had
		if attrs.MTU < had {
			found = append(found, model.LoweredMTU{Interface: attrs.Name, Now: attrs.MTU, Before: had})
		}
	}
	d.highestMTU = highest
	return found
}
