package datapath

import (
	"slices"

	"github.com/vishvananda/netlink"
)

// routeFrom sets the VRF in which routes are looked up: that of the director's first
// interface, where packets come in, if it is in one. The lock is held.
func (r *resolver) routeFrom(interfaces []string) {
	if r.from != nil && slices.Equal(r.from, interfaces) {
		return
	}
	r.from = slices.Clone(interfaces)
	if r.from == nil {
		r.from = []string{}
	}
	vrf := 0
	if len(interfaces) > 0 {
		if link := linkByName(interfaces[0]); link != nil {
			vrf = r.vrfOf(link)
		}
	}
	if vrf != r.vrf {
		r.vrf = vrf
		clear(r.routes)
		clear(r.others)
	}
}

// vrfOf returns the index of the VRF that an interface is in, directly or by a bridge, bond or VLAN
// interface; 0: it is in none.
func (r *resolver) vrfOf(link netlink.Link) int {
	for link != nil && link.Attrs().MasterIndex != 0 {
		link = r.link(link.Attrs().MasterIndex)
		if link != nil && link.Type() == "vrf" {
			return link.Attrs().Index
		}
	}
	return 0
}

// inVRF are the options for asking about a route. The kernel takes a VRF as outgoing interface for
// its table (Documentation/networking/vrf.rst).
func (r *resolver) inVRF() *netlink.RouteGetOptions {
	if r.vrf == 0 {
		return nil
	}
	return &netlink.RouteGetOptions{OifIndex: r.vrf}
}
