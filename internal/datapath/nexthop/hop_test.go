package nexthop

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// given is a resolver that has read links and routes already: not every kernel has VLAN interfaces.
func given(links map[int]netlink.Link, routes map[netip.Addr]Route) *Resolver {
	deps := Deps{Log: slog.New(slog.DiscardHandler), Pin: "/sys/fs/bpf/weir"}
	return &Resolver{log: deps.Log, onward: newOnward(deps, nil), links: links, routes: routes}
}

// A backend is sent to in the network in which its neighbor was found: that of the VLAN interface that
// the route leads by, if the program can write its tag, unless a tag is configured.
func TestWayByVLAN(t *testing.T) {
	t.Parallel()
	address, mac := netip.MustParseAddr("10.0.0.11"), model.MAC{2, 0, 0, 0, 0, 11}
	vlanOn := func(index, id int, protocol netlink.VlanProtocol) netlink.Link {
		return &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: index, ParentIndex: 7, EncapType: "ether", MTU: 1500}, VlanId: id, VlanProtocol: protocol}
	}
	links := map[int]netlink.Link{
		7:   &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 7, Name: "card", EncapType: "ether"}},
		200: vlanOn(200, 200, netlink.VLAN_PROTOCOL_8021Q),
		201: vlanOn(201, 201, netlink.VLAN_PROTOCOL_8021AD),
	}
	for _, test := range []struct {
		by         int    // the interface that the route leads by
		configured uint16 // tag
		ifindex    int
		tag        uint16
		routed     bool
	}{
		{7, 0, 7, 0, false},
		{200, 0, 7, 200, true},
		{200, 300, 7, 300, true},
		{201, 0, 201, 0, true},
	} {
		r := given(links, nil)
		way := Route{Via: Neighbor{test.by, address}}
		way.Hop.leaveBy(links[test.by], r.link)
		r.routes = map[netip.Addr]Route{address: way}
		b := model.TableBackend{Address: address, Mode: model.NAT, State: model.Active, VLAN: test.configured}
		hop := r.hopOf(b, []string{"card"}, func(Neighbor) model.MAC { return mac }, r.onward.hopBy)
		if hop.Ifindex != test.ifindex || hop.VLAN != test.tag || hop.Routed != test.routed || hop.MAC != mac {
			t.Errorf("by interface %d with tag %d configured packets leave by %+v", test.by, test.configured, hop)
		}
	}
}

// Packets leave by the interface that a VLAN is on, with a tag, if XDP can send into that, and else by
// the VLAN's own, to which the kernel adds the tag. Not every kernel has VLAN interfaces: routes here
// lead into others, and only what the resolver remembers says that they are.
func TestOnwardVLAN(t *testing.T) {
	host := netlab.ForTest(t).Host("host")
	if err := host.Do(func() error { return byVLAN(t) }); err != nil {
		t.Fatal(err)
	}
}

func byVLAN(t *testing.T) error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ready"}, PeerName: "coalesces"}); err != nil {
		return err
	}
	if err := device.SetEthtool("coalesces", unix.ETHTOOL_SGRO, 1); err != nil {
		return err
	}
	for _, name := range []string{"tagged", "bridge"} {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			return err
		}
	}
	for _, name := range []string{"coalesces", "ready", "tagged", "bridge"} {
		if _, err := device.SetQuietlyUp(name); err != nil {
			return err
		}
	}
	address, err := netlink.ParseAddr("10.244.0.1/24")
	if err != nil {
		return err
	}
	tagged := device.ByName("tagged")
	if err := netlink.AddrAdd(tagged, address); err != nil {
		return err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	backend, mac := netip.MustParseAddr("10.244.0.7"), model.MAC{2, 0, 0, 0, 0, 7}
	for on, kernel := range map[string]bool{"ready": false, "bridge": true} {
		attrs := *tagged.Attrs()
		attrs.ParentIndex = device.ByName(on).Attrs().Index
		r := given(map[int]netlink.Link{attrs.Index: &netlink.Vlan{LinkAttrs: attrs, VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}}, map[netip.Addr]Route{})
		r.netlink = handle
		hop := r.hopOf(model.TableBackend{Address: backend, Mode: model.IPIP}, []string{"coalesces"}, func(Neighbor) model.MAC { return mac }, r.onward.hop)
		made := device.ByName(r.onward.name)
		switch {
		case !kernel && (hop.Ifindex != attrs.ParentIndex || hop.VLAN != 7 || hop.MAC != mac):
			t.Errorf("by a VLAN on %s packets leave by %+v", on, hop)
		case kernel && (made == nil || hop.Ifindex != made.Attrs().Index || hop.VLAN != 0 || int(hop.MAC[5]) != attrs.Index):
			t.Errorf("by a VLAN on %s packets leave by %+v, and the pair is %+v", on, hop, made)
		}
	}
	return nil
}
