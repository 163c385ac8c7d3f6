package doctor_test

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
)

// overlay is a configuration of a VTEP with a backend in vxlan:5001.
func overlay(t *testing.T, vtep string) *model.Config {
	t.Helper()
	c := config(model.L2DSR, "172.16.0.11")
	c.Services[0].Segment = model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
	c.Director.VTEP = model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr(vtep)}}
	c.SetDefaults()
	return c
}

// A backend in VXLAN is reached by the route to its VTEP. Where that is says the backend, the segment's hosts, or
// what a director knows that runs; what nothing says is no failure of the host.
func TestBackendsInOverlays(t *testing.T) {
	l := newLab(t)
	const check = "backend 172.16.0.11 in vxlan:5001"
	host := func(vtep string) model.SegmentHost {
		return model.SegmentHost{Address: netip.MustParseAddr("172.16.0.11"), MAC: model.MAC{2, 0, 0, 0, 0, 11}, VTEP: netip.MustParseAddr(vtep)}
	}
	own := func(c *model.Config, vtep string) {
		b := &c.Services[0].Backends[0]
		b.VTEP, b.MAC = netip.MustParseAddr(vtep), model.MAC{2, 0, 0, 0, 0, 11}
	}
	listed := func(c *model.Config, vtep string) {
		c.Segments = []model.SegmentSettings{{ID: c.Services[0].Segment, Hosts: []model.SegmentHost{host(vtep)}}}
	}
	told := func(hosts ...model.SegmentHostStatus) func() *model.SegmentsStatus {
		return func() *model.SegmentsStatus {
			return &model.SegmentsStatus{Segments: []model.SegmentStatus{{ID: model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, Hosts: hosts}}}
		}
	}
	for name, test := range map[string]struct {
		change    func(*model.Config)
		places    func() *model.SegmentsStatus
		level     doctor.Level
		text, fix string
	}{
		"its own":                {change: func(c *model.Config) { own(c, "10.0.1.2") }},
		"its own, behind router": {change: func(c *model.Config) { own(c, "10.0.3.2") }},
		"its own, no route":      {change: func(c *model.Config) { own(c, "192.0.2.1") }, level: doctor.Fail, text: "it is at VTEP 192.0.2.1, and there is no route to it", fix: "ip route add 192.0.2.1 ..."},
		"its own, silent":        {change: func(c *model.Config) { own(c, "10.0.1.77") }, level: doctor.Warn, text: "the MAC address of the next hop 10.0.1.77 is not known", fix: "ping 10.0.1.77"},
		"the segment's":          {change: func(c *model.Config) { listed(c, "10.0.1.2") }},
		"a source's":             {places: told(model.SegmentHostStatus{SegmentHost: host("10.0.1.2"), Source: model.HostsOfEVPN})},
		"not known to it":        {places: told(), level: doctor.Fail, text: "nothing says at which VTEP it is in vxlan:5001", fix: "give vtep and mac"},
		"no director":            {places: func() *model.SegmentsStatus { return nil }, level: doctor.Warn, text: "no director that runs was found", fix: "start the director"},
	} {
		c := overlay(t, "10.0.0.1")
		if test.change != nil {
			test.change(c)
		}
		found := examine(t, l.director, doctor.Options{Config: c, Role: doctor.Director, Places: test.places})
		if test.level != "" {
			want(t, found, check, test.level, test.text, test.fix)
			continue
		}
		if f, amiss := found[check]; amiss {
			t.Errorf("%s: %+v", name, f)
		}
		want(t, found, "backends", doctor.OK, "1 of 1 have a next hop", "")
	}
}

// A backend of a VLAN is reached by the interface that its segment names, and a tenant's VIP may be an address of this
// host.
func TestSegmentInterfaces(t *testing.T) {
	l := newLab(t)
	c := config(model.L2DSR, "172.16.0.11")
	c.Services[0].Segment, c.Services[0].VIP = model.Segment{Kind: model.SegmentVLAN, ID: 7}, netip.MustParseAddr("10.0.1.1")
	const check = "backend 172.16.0.11 in vlan:7"
	want(t, examine(t, l.director, doctor.Options{Config: c, Role: doctor.Director}), check, doctor.Fail, "this host has no interface in vlan:7", "")
	c.Segments = []model.SegmentSettings{{ID: c.Services[0].Segment, Interface: "eth1"}}
	found := examine(t, l.director, doctor.Options{Config: c, Role: doctor.Director})
	want(t, found, check, doctor.Warn, "the MAC address of its next hop 172.16.0.11 is not known", "see that eth1 reaches it")
	if f, amiss := found["vip 10.0.1.1"]; amiss {
		t.Errorf("a tenant's VIP is taken for this host's address: %+v", f)
	}
}
