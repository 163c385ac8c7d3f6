package datapath

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// Not every kernel has VLAN interfaces: what a resolver has read of links and routes is given.
func resolverOf(links map[int]netlink.Link, routes map[netip.Addr]route) *resolver {
	log := slog.New(slog.DiscardHandler)
	return &resolver{log: log, onward: newOnward(Options{Pin: "/sys/fs/bpf/weir", Log: log}), links: links, routes: routes}
}

// A backend of a service in a VLAN segment is sent to in the network in which its neighbor was
// found: that of the VLAN interface that the route leads by, else the segment's.
func TestTagOfTheWay(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	card := wire(t)
	at := card.Attrs().Index
	vlanOn := func(index, id int, protocol netlink.VlanProtocol) netlink.Link {
		return &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: index, ParentIndex: at, EncapType: "ether", MTU: 1500}, VlanId: id, VlanProtocol: protocol}
	}
	links := map[int]netlink.Link{
		at:  card,
		100: vlanOn(100, 100, netlink.VLAN_PROTOCOL_8021Q),
		200: vlanOn(200, 200, netlink.VLAN_PROTOCOL_8021Q),
		201: vlanOn(201, 201, netlink.VLAN_PROTOCOL_8021AD),
	}
	keeps := uint8(directorBackendFlagBACKEND_KEEP_TAGS)
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
		{"l2dsr to another VLAN", "vlan:100", model.L2DSR, 200, 0, at, 200, 0},
		{"l2dsr in the segment's VLAN", "vlan:100", model.L2DSR, 100, 0, at, 100, keeps},
		{"l2dsr without a VLAN interface", "vlan:100", model.L2DSR, at, 0, at, 0, keeps},
		{"l2dsr in a segment of two tags", "vlan:100.7", model.L2DSR, at, 0, at, 0, keeps},
		{"a tunnel by a VLAN", "vlan:100", model.IPIP, 200, 0, at, 200, 0},
	} {
		var segment model.Segment
		must(t, segment.UnmarshalText([]byte(test.segment)))
		address := netip.MustParseAddr("10.0.0.11")
		way := route{via: neighbor{test.by, address}}
		r := resolverOf(links, nil)
		way.hop.leaveBy(links[test.by], r.link)
		r.routes = map[netip.Addr]route{address: way}
		b := model.TableBackend{Address: address, Mode: test.mode, State: model.Active, VLAN: test.vlan}
		hop := r.hopOf(b, []string{"wire0"}, func(neighbor) model.MAC { return neighborMAC(address) }, r.onward.hopBy)
		entry := entryOf(&model.TableService{VIP: netip.MustParseAddr("198.51.100.1"), Segment: segment}, 1, b, hop)
		if int(entry.Ifindex) != test.ifindex || bigEndian16(entry.Vlan) != test.tag || entry.Flags&keeps != test.flags {
			t.Errorf("%s: packets leave by %d with tag %d and flags %#x, want %d, %d, %#x", test.name,
				entry.Ifindex, bigEndian16(entry.Vlan), entry.Flags&keeps, test.ifindex, test.tag, test.flags)
		}
	}
}
