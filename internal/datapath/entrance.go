package datapath

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// Entrance returns the interface that packets from an address come in by, as far as routes
// say, and its MAC address: of the director's interfaces the one that leads there, else the
// first. A name that is not empty is the interface itself.
func (d *Datapath) Entrance(name string, from netip.Addr) (string, model.MAC, error) {
	d.mu.Lock()
	interfaces := d.table.Interfaces
	d.mu.Unlock()
	switch {
	case len(interfaces) == 0:
		return "", model.MAC{}, ErrNothingForwarded
	case name != "" && !slices.Contains(interfaces, name):
		return "", model.MAC{}, fmt.Errorf("interface %s: is none of the director's (%v)", name, interfaces)
	case name == "":
		name = interfaces[0]
		if from.IsValid() {
			names := map[uint32]string{}
			if leads := interfaceName(uint32(d.hops.routeTo(from).hop.ifindex), names); slices.Contains(interfaces, leads) {
				name = leads
			}
		}
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return "", model.MAC{}, fmt.Errorf("interface %s: %w", name, err)
	}
	var mac model.MAC
	copy(mac[:], link.Attrs().HardwareAddr)
	return name, mac, nil
}
