package datapath

import (
	"cmp"
	"net/netip"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
)

// A backend of a service in a VLAN segment is sent to in the network in which its neighbor was
// found: that of the VLAN interface that the route leads by, else the segment's.
func TestTagOfTheWay(t *testing.T) {
	t.Parallel()
	const at = 7
	// By the interface that the route leads by: its own number, that of a VLAN, or of one by 802.1ad.
	hops := map[int]nexthop.Hop{
		at:  {Ifindex: at},
		100: {Ifindex: at, VLAN: 100, Routed: true},
		200: {Ifindex: at, VLAN: 200, Routed: true},
		201: {Ifindex: 201, Routed: true},
	}
	keeps, two := uint8(abi.BackendFlagBACKEND_KEEP_TAGS), uint8(abi.BackendFlagBACKEND_TWO_TAGS)
	for _, test := range []struct {
		name    string
		segment string
		mode    model.Mode
		by      int    // the interface that the route leads by
		vlan    uint16 // that is configured
		ifindex int
		tag     uint16
		flags   uint8
	}{
		{"full NAT to another VLAN", "vlan:100", model.NAT, 200, 0, at, 200, 0},
		{"full NAT in the segment's VLAN", "vlan:100", model.NAT, 100, 0, at, 100, 0},
		{"full NAT without a VLAN interface", "vlan:100", model.NAT, at, 0, at, 100, 0},
		{"full NAT with a tag that is configured", "vlan:100", model.NAT, 200, 300, at, 300, 0},
		{"full NAT out of a VLAN without a segment", "none", model.NAT, 200, 0, at, 200, 0},
		{"full NAT by 802.1ad", "none", model.NAT, 201, 0, 201, 0, 0},
		{"full NAT in a segment, by 802.1ad", "vlan:100", model.NAT, 201, 0, 201, 0, 0},
		{"full NAT in a segment of the same number, by 802.1ad", "vlan:201", model.NAT, 201, 0, 201, 0, 0},
		{"full NAT in a segment of two tags", "vlan:100.7", model.NAT, at, 0, at, 0, two},
		{"l2dsr to another VLAN", "vlan:100", model.L2DSR, 200, 0, at, 200, 0},
		{"l2dsr in the segment's VLAN", "vlan:100", model.L2DSR, 100, 0, at, 100, keeps},
		{"l2dsr without a VLAN interface", "vlan:100", model.L2DSR, at, 0, at, 0, keeps},
		{"l2dsr in a segment of two tags", "vlan:100.7", model.L2DSR, at, 0, at, 0, keeps},
		{"a tunnel by a VLAN", "vlan:100", model.IPIP, 200, 0, at, 200, 0},
	} {
		var segment model.Segment
		must(t, segment.UnmarshalText([]byte(test.segment)))
		address := netip.MustParseAddr("10.0.0.11")
		b := model.TableBackend{Address: address, Mode: test.mode, State: model.Active, VLAN: test.vlan}
		hop := hops[test.by]
		hop.MAC = neighborMAC(address)
		hop.VLAN = cmp.Or(test.vlan, hop.VLAN)
		entry := entryOf(&model.TableService{VIP: netip.MustParseAddr("198.51.100.1"), Segment: segment}, 1, b, hop)
		if int(entry.Ifindex) != test.ifindex || abi.BigEndian16(entry.Vlan) != test.tag || entry.Flags&(keeps|two) != test.flags {
			t.Errorf("%s: packets leave by %d with tag %d and flags %#x, want %d, %d, %#x", test.name,
				entry.Ifindex, abi.BigEndian16(entry.Vlan), entry.Flags&(keeps|two), test.ifindex, test.tag, test.flags)
		}
	}
}
