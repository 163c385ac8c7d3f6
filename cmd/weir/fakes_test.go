package main

import (
	"bufio"
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/sets"
)

// fakeSegment is a tenant's network.
var fakeSegment = model.Segment{Kind: model.SegmentVLAN, ID: 7}

// fakeBGP is what the transcripts' director says about its neighbors.
func fakeBGP() model.BGPStatus {
	med := uint32(5)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return model.BGPStatus{
		ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.2"),
		Neighbors: []model.BGPNeighborStatus{
			{Address: netip.MustParseAddr("10.0.0.1"), ASN: 65000, State: model.SessionEstablished, Since: since,
				RouterID: netip.MustParseAddr("10.0.0.1"), Local: netip.MustParseAddr("10.0.0.2"), HoldTime: model.Duration(3 * time.Second),
				Families: []model.BGPFamily{model.BGPIPv4, model.BGPIPv6, model.BGPEVPN}, GracefulRestart: true, Announced: 2, BFD: "up", Losses: 1,
				EVPN: &model.BGPEVPNStatus{Sent: 3, Received: 12}},
			{Address: netip.MustParseAddr("2001:db8::1"), ASN: 65000, State: model.SessionConnecting, Since: since,
				Families: []model.BGPFamily{}, Problem: "connect: connection refused"},
			{Address: netip.MustParseAddr("10.0.0.1"), VRF: "tenant7", Segment: fakeSegment, ASN: 65000, State: model.SessionConnecting, Since: since,
				Families: []model.BGPFamily{}, Problem: "there is no interface tenant7 (vrf)", Own: true},
		},
		EVPN: []model.EVPNStatus{{VNI: 5001, VTEP: netip.MustParseAddr("10.0.0.2"), Distinguisher: model.NewRouteDistinguisher(netip.MustParseAddr("10.0.0.2"), 5001),
			Export: []model.RouteTarget{model.NewRouteTarget(65001, 5001)}, Entries: 2, Hosts: 9, VTEPs: 3,
			Contested: []model.EVPNHost{{VNI: 5001, MAC: model.MAC{2, 5: 9}, IP: netip.MustParseAddr("192.168.0.100"), VTEP: netip.MustParseAddr("10.0.0.9"), Label: 5001, Sequence: 4}}}},
		Routes: []model.RouteStatus{
			{Prefix: netip.MustParsePrefix("203.0.113.10/32"), Neighbors: 1},
			{Prefix: netip.MustParsePrefix("2001:db8:1::/64"), Neighbors: 1, Attributes: model.BGPAttributes{MED: &med, Prepend: 1,
				Communities: []model.Community{{Parts: [3]uint32{65001, 100}}, {Parts: [3]uint32{65535, 0xff01}}}}},
			{Segment: fakeSegment, Prefix: netip.MustParsePrefix("203.0.113.10/32")},
			{Segment: model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, Prefix: netip.MustParsePrefix("172.16.0.100/32"), EVPN: 1},
		},
	}
}

// serveFakeBFD answers as the BFD process of the transcripts does.
func serveFakeBFD(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "bfd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	answer, err := json.Marshal(fakeBFD())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			if _, err := bufio.NewReader(conn).ReadBytes('\n'); err == nil {
				_, _ = conn.Write(append(answer, '\n'))
			}
			conn.Close()
		}
	}()
	return socket
}

func fakeBFD() model.BFDStatus {
	since, ms := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), model.Duration(time.Millisecond)
	return model.BFDStatus{
		Version: "v1.2.3", PID: 8, Started: since, Deadline: since.Add(time.Hour), Realtime: true, Late: ms,
		Sessions: []model.BFDSessionStatus{
			{Neighbor: netip.MustParseAddr("10.0.0.1"), Source: netip.MustParseAddr("10.0.0.2"), State: "up", Since: since, Diagnostic: "none",
				RemoteState: "up", RemoteDiagnostic: "none", Interval: 50 * ms, Detection: 150 * ms, Discriminator: 7, Remote: 9,
				Changes: 5, Losses: 1, LastLoss: "detection-expired", Sent: 100, Received: 99},
			{Neighbor: netip.MustParseAddr("2001:db8::1"), Multihop: true, State: "down", Since: since, Diagnostic: "forwarding-reset",
				RemoteState: "down", RemoteDiagnostic: "neighbor-down", Interval: 1000 * ms, Discriminator: 8, Held: "forwarding-reset",
				Problem: "send: network is unreachable"},
		},
		Discards: []model.Tallied{{Name: "length"}, {Name: "ttl", Count: 3}},
	}
}

// fakeNeighbor is what the transcripts' director says of the VIPs that it answers for.
var fakeNeighbor = model.NeighborStatus{
	Director: netip.MustParseAddr("10.0.0.2"), Lease: model.LeaseHeld, Taken: 4, Lost: 3,
	Interfaces: []model.NeighborInterfaceStatus{
		{Name: "eth0", MAC: "02:00:00:00:00:02", Announced: 14, Answered: 30, Limited: 1},
		{Name: "eth0", Segment: fakeSegment, MAC: "02:00:00:00:00:02", Announced: 6, Answered: 2},
		{Name: "eth1", Problem: "it is down, or has no carrier"},
	},
	VIPs: []model.NeighborVIP{
		{VIP: netip.MustParseAddr("203.0.113.10"), State: model.NeighborAnswers, Owner: netip.MustParseAddr("10.0.0.2"),
			Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Interfaces: []string{"eth0"}},
		{VIP: netip.MustParseAddr("203.0.113.11"), State: model.NeighborOther, Owner: netip.MustParseAddr("10.0.0.3"), Interfaces: []string{"eth0"}},
		{VIP: netip.MustParseAddr("2001:db8::53"), State: model.NeighborNobody, Interfaces: []string{},
			Problem: "it is in no network of an interface of director.neighbor that works"},
		{Segment: fakeSegment, VIP: netip.MustParseAddr("203.0.113.10"), State: model.NeighborAnswers, Owner: netip.MustParseAddr("10.0.0.2"),
			Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Interfaces: []string{"eth0"}},
	},
}

// fakeSegments are what the transcripts' director knows of tenants' networks.
type fakeSegments struct{}

func (fakeSegments) Segments([]model.Segment) (model.SegmentsStatus, error) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	host := func(address, vtep string, number byte) model.SegmentHost {
		return model.SegmentHost{Address: netip.MustParseAddr(address), MAC: model.MAC{0xfa, 0x16, 0x3e, 0, 0, number}, VTEP: netip.MustParseAddr(vtep)}
	}
	here, elsewhere := host("172.16.0.11", "192.0.2.11", 1), host("172.16.0.11", "192.0.2.12", 1)
	there := host("172.16.0.12", "192.0.2.12", 2)
	there.VNI, there.Options = 7, "\x01\x02\x80\x01\x00\x00\x00\x03"
	status := model.SegmentsStatus{
		Sources: []model.HostSourceStatus{{Source: model.HostsOfAPI, Hosts: 1, Since: since},
			{Source: model.HostsOfOVN, Hosts: 2, Since: since.Add(time.Hour), Lost: "tcp:192.0.2.5:6642: connection refused"}},
		Segments: []model.SegmentStatus{
			{ID: fakeSegment, Addresses: []netip.Addr{}, Services: []string{"dns"}, Hosts: []model.SegmentHostStatus{}},
			{ID: model.Segment{Kind: model.SegmentGeneve, ID: 5001}, VNI: 7, MAC: model.MAC{2, 0, 0, 0, 0, 9}, Addresses: []netip.Addr{netip.MustParseAddr("172.16.0.3")},
				Network: "tenant-a", Services: []string{"web", "api"},
				Hosts: []model.SegmentHostStatus{{SegmentHost: here, Source: model.HostsOfAPI, Others: []model.OtherHost{{SegmentHost: elsewhere, Source: model.HostsOfOVN}}},
					{SegmentHost: there, Source: model.HostsOfOVN}},
				Problems: []string{"172.16.0.11: the API says fa:16:3e:00:00:01 at 192.0.2.11, and counts; OVN says fa:16:3e:00:00:01 at 192.0.2.12"}},
			{ID: model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, VNI: 5001, MAC: model.MAC{2, 0, 0, 0, 0, 7}, Addresses: []netip.Addr{}, Services: []string{}, Hosts: []model.SegmentHostStatus{}},
			{ID: model.Segment{Kind: model.SegmentGeneve, ID: 5002}, MAC: model.MAC{2, 0, 0, 0, 0, 8}, Addresses: []netip.Addr{}, Network: "tenant-b", Services: []string{}, Hosts: []model.SegmentHostStatus{}},
		},
	}
	status.Count([]model.SegmentCounts{{ID: fakeSegment, Services: 1}, {ID: model.Segment{Kind: model.SegmentGeneve, ID: 5001}, Services: 2, Backends: 4, RingMemory: 16512, Flows: 120, Packets: 90210, Bytes: 45105000, Opened: 801, Dropped: 3}},
		&model.Config{Segments: []model.SegmentSettings{{ID: model.Segment{Kind: model.SegmentGeneve, ID: 5001}, Limits: &model.SegmentLimits{ShareLimits: model.ShareLimits{Services: 3, RingMemory: 1 << 20, ProbesPerSecond: 500}}}}})
	return status, nil
}

func (fakeSegments) PutSegments(text api.SetText) (put api.PutHosts, err error) {
	c := &model.Config{Director: model.Director{VTEP: model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}}
	list, err := sets.Read(text, func(text []byte) ([]model.SegmentHosts, error) { return config.ParseHosts("segments", text, c) })
	for i := range list {
		put.Hosts += len(list[i].Hosts)
		if list[i].ID.ID == 7777 {
			put.Unnamed = append(put.Unnamed, list[i].ID)
		}
	}
	put.Segments = len(list)
	return put, err
}

func fakeSources() []model.HostSourceStatus {
	status, _ := fakeSegments{}.Segments(nil)
	return status.Sources
}
