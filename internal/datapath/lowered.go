package datapath

import (
	"errors"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// Lowered are the interfaces whose MTU has become smaller since this process looked for the first
// time.
func (d *Datapath) Lowered() []model.LoweredMTU {
	d.mu.Lock()
	defer d.mu.Unlock()
	var now []upkeep.MTU
	for _, link := range d.links {
		if link != nil {
			now = append(now, upkeep.MTU{Name: link.Attrs().Name, Index: link.Attrs().Index, MTU: link.Attrs().MTU})
		}
	}
	return d.mtus.Lowered(now, func(index int) bool {
		_, err := netlink.LinkByIndex(index)
		var none netlink.LinkNotFoundError
		return errors.As(err, &none)
	})
}
