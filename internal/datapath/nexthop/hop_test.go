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
	return &Resolver{log: deps.Log, onward: newOnward(deps, nil), links: links, routes: routes, addresses: map[linkFamily]netip.Addr{}}
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
		tenant := model.TableBackend{Address: backend, Mode: model.NAT, Interface: "tagged", Segment: model.Segment{Kind: model.SegmentVLAN, ID: 7}}
		if same := r.hopOf(tenant, []string{"coalesces"}, func(Neighbor) model.MAC { return mac }, r.onward.hop); same.Problem != "" || same.Ifindex != hop.Ifindex || same.VLAN != hop.VLAN || same.MAC != hop.MAC {
			t.Errorf("by a VLAN on %s a tenant's packets leave by %+v, others by %+v", on, same, hop)
		}
		switch {
		case !kernel && (hop.Ifindex != attrs.ParentIndex || hop.VLAN != 7 || hop.MAC != mac):
			t.Errorf("by a VLAN on %s packets leave by %+v", on, hop)
		case kernel && (made == nil || hop.Ifindex != made.Attrs().Index || hop.VLAN != 0 || int(hop.MAC[5]) != attrs.Index):
			t.Errorf("by a VLAN on %s packets leave by %+v, and the pair is %+v", on, hop, made)
		}
	}
	return nil
}

// A tenant's backend is on the link of its own network, whatever the host's routes say of its address, which may
// be the host's own. So is one that names its interface.
func TestTenantsAreOnTheirOwnLink(t *testing.T) {
	lab := netlab.ForTest(t)
	host := lab.Host("host")
	trunk := lab.Link(host, lab.Host("tenants"), netlab.LinkOptions{XDP: true, A: []string{"10.0.0.1/24", "fd00::1/64"}}).A
	other := lab.Link(host, lab.Host("others"), netlab.LinkOptions{XDP: true, A: []string{"10.9.0.1/24"}}).A
	host.Route("default", "10.9.0.2")
	mac := model.MAC{2, 0, 0, 0, 0, 11}
	own, far := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("172.16.0.9")
	near, near6 := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")
	tenant := model.Segment{Kind: model.SegmentVLAN, ID: 100}
	err := host.Do(func() error {
		r, err := New(Deps{Log: slog.New(slog.DiscardHandler), Pin: "/sys/fs/bpf/weir"})
		if err != nil {
			return err
		}
		defer r.Close()
		for name, c := range map[string]struct {
			b       model.TableBackend
			by      int
			via     netip.Addr
			problem string
		}{
			"own address":                {model.TableBackend{Address: own, MAC: mac, Segment: tenant}, trunk.Index, netip.Addr{}, ""},
			"by another's default route": {model.TableBackend{Address: far, MAC: mac, Segment: tenant}, trunk.Index, netip.Addr{}, ""},
			"in another VLAN":            {model.TableBackend{Address: far, MAC: mac, Segment: tenant, VLAN: 200}, trunk.Index, netip.Addr{}, ""},
			"no MAC address":             {model.TableBackend{Address: near, Segment: tenant}, 0, netip.Addr{}, "this host has no interface in vlan:100: give mac, or interface"},
			"named interface":            {model.TableBackend{Address: near, MAC: mac, Interface: other.Name}, other.Index, netip.Addr{}, ""},
			"own address, interface":     {model.TableBackend{Address: own, MAC: mac, Interface: other.Name, Segment: tenant}, other.Index, netip.Addr{}, ""},
			"neighbor there":             {model.TableBackend{Address: far, Interface: trunk.Name}, trunk.Index, far, ""},
			"neighbor there, IPv6":       {model.TableBackend{Address: near6, Interface: trunk.Name}, trunk.Index, near6, ""},
			"router there":               {model.TableBackend{Address: far, Mode: model.NAT, Interface: other.Name}, other.Index, netip.MustParseAddr("10.9.0.2"), ""},
			"router there, l2dsr":        {model.TableBackend{Address: far, Interface: other.Name}, other.Index, netip.Addr{}, "it is behind router 10.9.0.2, and l2dsr needs it on a link of the director's"},
			"missing interface":          {model.TableBackend{Address: near, MAC: mac, Interface: "eth7"}, 0, netip.Addr{}, "there is no interface eth7"},
		} {
			if c.b.Mode == 0 {
				c.b.Mode = model.L2DSR
			}
			c.b.State = model.Active
			hop := r.Resolve(c.b, []string{trunk.Name})
			wantMAC := c.b.MAC
			if c.problem != "" && c.by == 0 {
				wantMAC = model.MAC{}
			}
			if hop.Local || hop.Ifindex != c.by || hop.Via.Address != c.via || hop.Problem != c.problem || hop.MAC != wantMAC || hop.VLAN != c.b.VLAN {
				t.Errorf("%s: packets leave by %+v, want interface %d, via %v, problem %q", name, hop, c.by, c.via, c.problem)
			}
		}
		if hop := r.Resolve(model.TableBackend{Address: own, MAC: mac, Mode: model.L2DSR}, []string{trunk.Name}); !hop.Local {
			t.Errorf("in no segment the host's own address is by %+v", hop)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A VLAN that the host has an interface in is reached by that, whatever other VLANs have the address.
func TestTenantByVLANInterface(t *testing.T) {
	t.Parallel()
	address, mac := netip.MustParseAddr("10.0.0.11"), model.MAC{2, 0, 0, 0, 0, 11}
	lo, err := netlink.LinkByName("lo") // device.ByName has to find the parent
	if err != nil {
		t.Fatal(err)
	}
	parent := lo.Attrs().Index
	vlan := func(index, id int) netlink.Link {
		return &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: index, ParentIndex: parent, EncapType: "ether", MTU: 1500, Name: "vlan"}, VlanId: id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	}
	card := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: parent, Name: "lo", EncapType: "ether"}}
	r := given(map[int]netlink.Link{parent: card, 300: vlan(300, 100), 301: vlan(301, 101)}, map[netip.Addr]Route{address: {Hop: Hop{Local: true}}})
	r.vlans = map[vlanOf]int{{parent, 100}: 300, {parent, 101}: 301}
	r.addresses = map[linkFamily]netip.Addr{{300, false}: netip.MustParseAddr("10.0.0.1"), {301, false}: netip.MustParseAddr("10.0.0.2")}
	for id, index := range map[uint32]int{100: 300, 101: 301} {
		b := model.TableBackend{Address: address, Mode: model.L2DSR, State: model.Active, MAC: mac, Segment: model.Segment{Kind: model.SegmentVLAN, ID: id}}
		if hop := r.hopOf(b, []string{"lo"}, func(Neighbor) model.MAC { return mac }, r.onward.hopBy); hop.Local || hop.Link != index || hop.VLAN != uint16(id) || hop.MAC != mac {
			t.Errorf("in VLAN %d packets leave by %+v, want interface %d", id, hop, index)
		}
	}
}
