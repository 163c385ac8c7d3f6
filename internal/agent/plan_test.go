package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/model"
)

func TestPlan(t *testing.T) {
	p, err := newPlan(testConfig(), host{addresses: map[netip.Addr]int{host4: loopbackIndex, host6: loopbackIndex}})
	if err != nil {
		t.Fatal(err)
	}
	both := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff([]netip.Addr{host4, host6}, p.ends, both); diff != "" {
		t.Errorf("tunnels end at (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]netip.Addr{vip4, rangeVIP4, vip6, rangeVIP6}, p.vips, both); diff != "" {
		t.Errorf("VIPs (-want +got):\n%s", diff)
	}
	names := ""
	for _, s := range p.services {
		names += " " + serviceName(s)
	}
	const want = " web4 192.0.2.10 dns4 web6 2001:db8::10 dns6 range4 192.0.2.11 all6 2001:db8::11 talk4 talk6 chat4 chat6" +
		" pods4 192.0.2.20 pods6 2001:db8::20 poddns4 poddns6 again4 other4 192.0.2.21 other6 2001:db8::21"
	if names != want {
		t.Errorf("services are%s, want%s", names, want)
	}
}

// TestPlanOfPods: a host whose backends are pods does not have the VIP, unless it is a
// backend itself; its peers are the other pods' hosts.
func TestPlanOfPods(t *testing.T) {
	at := func(address, host string) model.Backend {
		b := model.NewBackend()
		b.Address = netip.MustParseAddr(address)
		if host != "" {
			b.Host = netip.MustParseAddr(host)
		}
		return b
	}
	s := model.Service{Name: "s", VIP: vip4, Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE,
		Backends: []model.Backend{at("10.244.1.6", "10.0.1.11"), at("10.244.1.5", "2001:db8:1::11"), at("10.244.2.9", "10.0.1.12")}}
	h := host{addresses: map[netip.Addr]int{host4: loopbackIndex, host6: loopbackIndex}}
	plain := s
	plain.Port = model.PortRange{First: 443, Last: 443}
	plain.Backends = []model.Backend{at("10.0.1.11", "")}
	for _, test := range []struct {
		services []model.Service
		vips     int
		only     []bool // by service
	}{
		{[]model.Service{s}, 0, []bool{true, true}},
		{[]model.Service{s, plain}, 1, []bool{true, false, false}},
	} {
		p, err := newPlan(model.Config{Services: test.services}, h)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.vips) != test.vips || len(p.ends) != 2 {
			t.Errorf("the host has %v, and tunnels end at %v; want %d VIPs and its two addresses", p.vips, p.ends, test.vips)
		}
		for i, want := range test.only {
			if p.services[i].podsOnly != want {
				t.Errorf("%s has pods only: %v, want %v", serviceName(p.services[i]), !want, want)
			}
		}
		of := p.services[0]
		if len(of.pods) != 2 || of.pods[0].address.String() != "10.244.1.5" || of.pods[0].port != 80 || len(of.peers) != 3 {
			t.Errorf("pods are %+v, peers %v", of.pods, of.peers)
		}
		vip, pod := netip.AddrPortFrom(vip4, 80), netip.MustParseAddrPort("10.244.1.5:80")
		if !p.has(vip, model.TCP, pod) || p.has(vip, model.UDP, pod) || p.has(netip.AddrPortFrom(vip4, 81), model.TCP, pod) || p.has(vip, model.TCP, netip.MustParseAddrPort("10.244.2.9:80")) {
			t.Errorf("the host has other pods than %+v", of.pods)
		}
	}
}

// TestPlanLeavesNATAlone: a backend behind NAT sees its own address, so its host
// must not hold the VIP.
func TestPlanLeavesNATAlone(t *testing.T) {
	c := testConfig()
	c.Services = c.Services[:1]
	nat := model.NAT
	c.Services[0].Backends[0].Mode = &nat
	p, err := newPlan(c, host{addresses: map[netip.Addr]int{host4: loopbackIndex}})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.vips)+len(p.services)+len(p.ends) != 0 {
		t.Errorf("the host has %v, %v at %v, want nothing", p.vips, p.services, p.ends)
	}
}

// TestMSS checks that every host of a service offers the same: what fits the worst
// of its backends.
func TestMSS(t *testing.T) {
	mode := func(m model.Mode) *model.Mode { return &m }
	b4, b6 := model.Backend{Address: host4}, model.Backend{Address: host6}
	for _, test := range []struct {
		name     string
		service  model.Service
		mtu      int
		want     int
		problem  string
		backends []model.Backend
	}{
		{name: "l2dsr", service: model.Service{VIP: vip4, Mode: model.L2DSR}, backends: []model.Backend{b4}, want: 1460},
		{name: "ipip", service: model.Service{VIP: vip4, Mode: model.IPIP}, backends: []model.Backend{b4}, want: 1440},
		{name: "6 in 4", service: model.Service{VIP: vip6, Mode: model.IPIP}, backends: []model.Backend{b4}, want: 1420},
		{name: "4 in 6", service: model.Service{VIP: vip4, Mode: model.IPIP}, backends: []model.Backend{b6}, want: 1420},
		{name: "gue", service: model.Service{VIP: vip4, Mode: model.GUE}, backends: []model.Backend{b4}, want: 1396},
		{name: "gue over IPv6", service: model.Service{VIP: vip6, Mode: model.GUE}, backends: []model.Backend{b6}, want: 1304},
		{name: "pods", service: model.Service{VIP: vip4, Mode: model.GUE}, backends: []model.Backend{{Address: netip.MustParseAddr("10.244.1.5"), Host: host4}}, want: 1360},
		{name: "pods over IPv6", service: model.Service{VIP: vip6, Mode: model.GUE}, backends: []model.Backend{{Address: netip.MustParseAddr("fd00::5"), Host: host6}}, want: 1264},
		{name: "pods by ipip", service: model.Service{VIP: vip4, Mode: model.IPIP}, backends: []model.Backend{{Address: netip.MustParseAddr("10.244.1.5"), Host: host6}}, want: 1440},
		{name: "both families", service: model.Service{VIP: vip4, Mode: model.GUE}, backends: []model.Backend{b4, b6}, want: 1324},
		{name: "one backend by gue", service: model.Service{VIP: vip4, Mode: model.L2DSR},
			backends: []model.Backend{b4, {Address: peer4, Mode: mode(model.GUE)}}, want: 1396},
		{name: "path of 1400", service: model.Service{VIP: vip4, Mode: model.IPIP},
			backends: []model.Backend{b4, {Address: peer4, MTU: 1400}}, want: 1340},
		{name: "path of 9000 over links of 1500", service: model.Service{VIP: vip4, Mode: model.IPIP},
			backends: []model.Backend{{Address: host4, MTU: 9000}}, want: 1440},
		{name: "jumbo", mtu: 9000, service: model.Service{VIP: vip4, Mode: model.IPIP}, backends: []model.Backend{b4}, want: 8940},
		{name: "loopback's MTU", mtu: 1 << 20, service: model.Service{VIP: vip4, Mode: model.IPIP}, backends: []model.Backend{b4}, want: 65535},
		{name: "UDP", service: model.Service{VIP: vip4, Mode: model.IPIP, Protocol: model.UDP}, backends: []model.Backend{b4}},
		{name: "no room", mtu: 100, service: model.Service{VIP: vip6, Mode: model.GUE}, backends: []model.Backend{b6},
			problem: "an MTU of 100 bytes leaves no room"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := test.service
			s.Backends = test.backends
			if s.Protocol == 0 {
				s.Protocol = model.TCP
			}
			mtu := test.mtu
			if mtu == 0 {
				mtu = 1500
			}
			got, err := largestMSS(s, mtu)
			if got != test.want {
				t.Errorf("MSS is %d, want %d", got, test.want)
			}
			if (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
				t.Errorf("error is %v, want %q", err, test.problem)
			}
		})
	}
}

// TestSegmentsMerge: two services that differ in their segment only are one here.
func TestSegmentsMerge(t *testing.T) {
	c := testConfig()
	twin := c.Services[0]
	twin.Name, twin.Segment = "twin", model.Segment{Kind: model.SegmentVLAN, ID: 5}
	twin.Backends = []model.Backend{{Address: host4}, {Address: otherPeer4}}
	c.Services = []model.Service{c.Services[0], twin}
	p, err := newPlan(c, host{addresses: map[netip.Addr]int{host4: loopbackIndex}})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.services) != 2 {
		t.Fatalf("there are %d services, want one and its VIP: %+v", len(p.services), p.services)
	}
	if got := len(p.services[0].peers); got != 3 {
		t.Errorf("the service has %d peers, want those of both: %v", got, p.services[0].peers)
	}
}

// TestSourcesHaveAllFlags: a backend inside a director's prefix is the longer of the
// two, so it alone is found.
func TestSourcesHaveAllFlags(t *testing.T) {
	inside := netip.MustParseAddr("10.0.9.5")
	flags := sources([]netip.Prefix{netip.MustParsePrefix("10.0.9.0/24")},
		[]service{{peers: []netip.Addr{inside, peer4}}})
	const director, backend = bpfHostSourceFlagHOST_SOURCE_DIRECTOR, bpfHostSourceFlagHOST_SOURCE_BACKEND
	want := map[netip.Prefix]bpfHostSourceFlag{
		netip.MustParsePrefix("10.0.9.0/24"): director,
		netip.PrefixFrom(inside, 32):         director | backend,
		netip.PrefixFrom(peer4, 32):          backend,
	}
	if diff := cmp.Diff(want, flags, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

// TestRangesCoverThePorts tries every port against the prefixes of ranges.
func TestRangesCoverThePorts(t *testing.T) {
	const fixed = 8 * 18
	for _, r := range []model.PortRange{{}, {First: 1, Last: 65535}, {First: 8000, Last: 8100}, {First: 65534, Last: 65535}, {First: 1023, Last: 1024}} {
		s := service{vip: vip4, protocol: model.TCP, port: r}
		keys := s.ranges()
		for port := range 1 << 16 {
			hits := 0
			for _, k := range keys {
				bits := k.PrefixLen - fixed
				if uint32(port)>>(16-bits) == uint32(networkOrder(k.Port))>>(16-bits) {
					hits++
				}
			}
			want := 0
			if r.All() || port > 0 && r.Contains(uint16(port)) {
				want = 1
			}
			if hits != want {
				t.Fatalf("port %d is in %d prefixes of %v, want %d", port, hits, r, want)
			}
		}
	}
}

// TestIndexesStay: a service keeps its index over any change, and a new one never
// gets an index that is in use.
func TestIndexesStay(t *testing.T) {
	tcp := func(port uint16) service {
		return service{name: "s", vip: vip4, protocol: model.TCP, port: model.PortRange{First: port, Last: port}}
	}
	all := service{name: "all", vip: rangeVIP4, protocol: model.TCP}
	first, err := newTables(plan{services: []service{tcp(1), tcp(2), all}}, nil, nil, 8)
	if err != nil {
		t.Fatal(err)
	}
	second, err := newTables(plan{services: []service{tcp(3), all, tcp(2)}}, first.endpoints, first.ranges, 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []service{tcp(2), all} {
		if a, b := first.indexes[s.identity()], second.indexes[s.identity()]; a != b || a == noService {
			t.Errorf("the index of %s was %d and is %d", s.describe(), a, b)
		}
	}
	if got := second.indexes[tcp(3).identity()]; got != 4 {
		t.Errorf("the new service has index %d, want 4: packets may still look at 1", got)
	}
	if diff := cmp.Diff([]uint32{4}, second.fresh); diff != "" {
		t.Errorf("fresh indexes (-want +got):\n%s", diff)
	}
	if _, err := newTables(plan{services: []service{tcp(1), tcp(2), tcp(3)}}, nil, nil, 3); err == nil {
		t.Error("three services fit into two indexes")
	}
}
