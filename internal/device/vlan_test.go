package device

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// The director's program writes a single 802.1Q tag on a real interface; the device itself writes
// all others.
func TestUntagged(t *testing.T) {
	at := func(index, parent int) netlink.LinkAttrs { return netlink.LinkAttrs{Index: index, ParentIndex: parent} }
	card := &netlink.Device{LinkAttrs: at(1, 0)}
	links := map[int]netlink.Link{
		1: card,
		2: &netlink.Vlan{LinkAttrs: at(2, 1), VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q},
		3: &netlink.Vlan{LinkAttrs: at(3, 1), VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021AD},
		4: &netlink.Vlan{LinkAttrs: at(4, 2), VlanId: 8, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q},
		5: &netlink.Vlan{LinkAttrs: at(5, 3), VlanId: 8, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q},
		6: &netlink.Vlan{LinkAttrs: at(6, 9), VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q},
		7: &netlink.Vlan{LinkAttrs: at(7, 1), VlanId: 7},
	}
	for _, test := range []struct {
		what        string
		index, real int
		tag         uint16
	}{
		{"no VLAN", 1, 1, 0},
		{"802.1Q", 2, 1, 7},
		{"802.1ad", 3, 3, 0},
		{"two tags of 802.1Q", 4, 4, 0},
		{"802.1Q in 802.1ad", 5, 5, 0},
		{"on an interface that is not there, or in another namespace", 6, 6, 0},
		{"of a protocol that nobody has said", 7, 7, 0},
	} {
		real, tag := Untagged(links[test.index], func(index int) netlink.Link { return links[index] })
		if real.Attrs().Index != test.real || tag != test.tag {
			t.Errorf("%s: packets leave by %d with tag %d, want %d with %d", test.what, real.Attrs().Index, tag, test.real, test.tag)
		}
	}
}
