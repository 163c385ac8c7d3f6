package director

import (
	"log/slog"
	"net/netip"
	"reflect"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/segments"
)

// learnedSink is a datapath that takes what was learned.
type learnedSink struct {
	hosts map[model.Segment][]model.SegmentHost
	macs  map[model.Segment][]model.SegmentMAC
}

func (s *learnedSink) SetHosts(hosts map[model.Segment][]model.SegmentHost) error {
	s.hosts = hosts
	return nil
}

func (s *learnedSink) SetMACs(macs map[model.Segment][]model.SegmentMAC) error {
	s.macs = macs
	return nil
}

func (*learnedSink) SetVNIs(map[model.Segment]uint32) error { return nil }
func (*learnedSink) SetVTEPs([]netip.Addr) error            { return nil }

// A host keeps its address while its MAC address is told, wherever that is by now, until another host has the address or
// nothing is told of either.
func TestAddressesOfQuietHosts(t *testing.T) {
	const vni = 5001
	tenant := model.Segment{Kind: model.SegmentVXLAN, ID: vni}
	address, first, second := netip.MustParseAddr("172.16.0.11"), model.MAC{2, 0, 0, 0, 0, 1}, model.MAC{2, 0, 0, 0, 0, 2}
	vtep := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
	mac := func(m model.MAC, at byte) model.EVPNHost {
		return model.EVPNHost{VNI: vni, MAC: m, VTEP: vtep(at), Label: vni}
	}
	host := func(m model.MAC, at byte) model.EVPNHost {
		h := mac(m, at)
		h.IP = address
		return h
	}
	config := &model.Config{
		Director: model.Director{VTEP: model.VTEP{Addresses: []netip.Addr{vtep(200)}}},
		BGP:      model.BGP{Neighbors: []model.BGPNeighbor{{Families: []model.BGPFamily{model.BGPEVPN}}}},
		Segments: []model.SegmentSettings{{ID: tenant}},
	}
	dir, to := t.TempDir(), &learnedSink{}
	start := func() *evpnHosts {
		e := &evpnHosts{segments: segments.New(segments.Deps{Sink: to, Directory: dir, Log: slog.New(slog.DiscardHandler)})}
		e.know(config)
		return e
	}
	e := start()
	for _, step := range []struct {
		name string
		told []model.EVPNHost
		want []model.SegmentHost
	}{
		{"a MAC address alone", []model.EVPNHost{mac(first, 1)}, nil},
		{"with its address", []model.EVPNHost{mac(first, 1), host(first, 1)}, []model.SegmentHost{{Address: address, MAC: first, VTEP: vtep(1), VNI: vni}}},
		{"a quiet host", []model.EVPNHost{mac(first, 1)}, []model.SegmentHost{{Address: address, MAC: first, VTEP: vtep(1), VNI: vni}}},
		{"a quiet host that has moved", []model.EVPNHost{mac(first, 2)}, []model.SegmentHost{{Address: address, MAC: first, VTEP: vtep(2), VNI: vni}}},
		{"another host has the address", []model.EVPNHost{mac(first, 2), mac(second, 3), host(second, 3)}, []model.SegmentHost{{Address: address, MAC: second, VTEP: vtep(3), VNI: vni}}},
		{"the host before is told alone", []model.EVPNHost{mac(first, 2)}, nil},
	} {
		e.follow(model.EVPNLearned{Hosts: step.told, Complete: true})
		if got := to.hosts[tenant]; !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: hosts are %+v, want %+v", step.name, got, step.want)
		}
		if len(to.macs[tenant]) == 0 {
			t.Errorf("%s: no MAC address is known", step.name)
		}
	}
}

// A guest that has many addresses, one after the other, keeps few of them when it is quiet.
func TestFewAddressesAreKept(t *testing.T) {
	tenant := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
	mac, vtep := model.MAC{2, 0, 0, 0, 0, 1}, netip.MustParseAddr("192.0.2.1")
	macs := map[model.Segment][]model.SegmentMAC{tenant: {{MAC: mac, VTEP: vtep}}}
	before := map[model.Segment][]model.SegmentHost{}
	for round := range byte(20) {
		said := segments.Said{Hosts: map[model.Segment][]model.SegmentHost{}, MACs: macs}
		for n := range byte(100) {
			said.Hosts[tenant] = append(said.Hosts[tenant], model.SegmentHost{Address: netip.AddrFrom4([4]byte{172, 16, round, n}), MAC: mac, VTEP: vtep})
		}
		keepAddresses(&said, before)
		if n := len(said.Hosts[tenant]); n != 100 {
			t.Fatalf("with 100 addresses that are told a host has %d", n)
		}
		before = said.Hosts
	}
	quiet := segments.Said{Hosts: map[model.Segment][]model.SegmentHost{}, MACs: macs}
	for range 2 {
		keepAddresses(&quiet, before)
		if n := len(quiet.Hosts[tenant]); n != mostKept {
			t.Errorf("a quiet host has %d addresses, want %d", n, mostKept)
		}
		before = quiet.Hosts
		quiet = segments.Said{Hosts: map[model.Segment][]model.SegmentHost{}, MACs: macs}
	}
}

// A VIP that neighbors are told of by EVPN is not told to nobody: each that is there counts, by the segment's VNI on the
// wire, but not for what another VTEP has taken.
func TestRoutesThatEVPNTells(t *testing.T) {
	red, blue := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, model.Segment{Kind: model.SegmentVXLAN, ID: 5002}
	e := evpnHosts{of: map[uint32]model.Segment{77: red}}
	route := func(in model.Segment, prefix string) model.RouteStatus {
		return model.RouteStatus{Segment: in, Prefix: netip.MustParsePrefix(prefix)}
	}
	evpn := &model.BGPEVPNStatus{}
	s := e.countEVPN(model.BGPStatus{
		Neighbors: []model.BGPNeighborStatus{{State: model.SessionEstablished, EVPN: evpn}, {State: model.SessionConnecting, EVPN: evpn}, {State: model.SessionEstablished}},
		EVPN:      []model.EVPNStatus{{VNI: 77, Contested: []model.EVPNHost{{IP: netip.MustParseAddr("172.16.0.101")}}}, {VNI: 5002}},
		Routes:    []model.RouteStatus{route(red, "172.16.0.100/32"), route(red, "172.16.0.101/32"), route(blue, "172.16.0.100/32"), route(model.Segment{}, "203.0.113.10/32")},
	})
	for i, want := range []int{1, 0, 0, 0} {
		if s.Routes[i].EVPN != want {
			t.Errorf("%v in %s is told to %d by EVPN, and not to %d", s.Routes[i].Prefix, s.Routes[i].Segment, s.Routes[i].EVPN, want)
		}
	}
}
