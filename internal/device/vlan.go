package device

import "github.com/vishvananda/netlink"

// Untagged returns the interface by which a VLAN's packets leave, and the tag to give them, if a
// director's program can write it, which is a single 802.1Q tag, and send by the real interface.
// For all others it returns the interface itself and no tag: only the VLAN device writes another
// protocol's tag (802.1ad) or the outer one of two. Link finds an interface by its index, and
// returns nil where there is none.
func Untagged(by netlink.Link, link func(index int) netlink.Link) (netlink.Link, uint16) {
	vlan, ok := by.(*netlink.Vlan)
	if !ok || vlan.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q {
		return by, 0
	}
	parent := link(vlan.ParentIndex)
	if parent == nil || parent.Type() == by.Type() {
		return by, 0
	}
	return parent, uint16(vlan.VlanId)
}
