package datapath

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// Entrance returns the interface by which packets from an address come in, as far as routes tell,
// and its MAC address: of the director's interfaces the one that leads to the address, else the
// first. If name is not empty, it names the interface.
func (d *Datapath) Entrance(name string, from netip.Addr) (string, model.MAC, error) {
	d.mu.Lock()
	links := slices.DeleteFunc(slices.Clone(d.links), func(l netlink.Link) bool { return l == nil })
	own, begun := d.own, d.begun
	d.mu.Unlock()
	if !begun || len(own) == 0 {
		return "", model.MAC{}, ErrNothingForwarded
	}
	if len(links) == 0 {
		return "", model.MAC{}, fmt.Errorf("none of the director's interfaces is there (%v)", own)
	}
	link, wanted := links[0], 0
	switch {
	case name != "":
		given := linkByName(name)
		if given == nil {
			return "", model.MAC{}, fmt.Errorf("interface %s: is not there; the director's are %v", name, own)
		}
		wanted = given.Attrs().Index
	case from.IsValid():
		wanted = d.hops.routeTo(from).hop.ifindex
	}
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == wanted })
	switch {
	case at >= 0:
		link = links[at]
	case name != "":
		return "", model.MAC{}, fmt.Errorf("interface %s: is none of the director's (%v)", name, own)
	}
	var mac model.MAC
	copy(mac[:], link.Attrs().HardwareAddr)
	return link.Attrs().Name, mac, nil
}
