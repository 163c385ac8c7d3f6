package main

import (
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
)

// fakeBGP is what the transcripts' director says about its neighbors.
func fakeBGP() model.BGPStatus {
	med := uint32(5)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return model.BGPStatus{
		ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.2"),
		Neighbors: []model.BGPNeighborStatus{
			{Address: netip.MustParseAddr("10.0.0.1"), ASN: 65000, State: model.SessionEstablished, Since: since,
				RouterID: netip.MustParseAddr("10.0.0.1"), Local: netip.MustParseAddr("10.0.0.2"), HoldTime: model.Duration(3 * time.Second),
				Families: []model.BGPFamily{model.BGPIPv4, model.BGPIPv6}, GracefulRestart: true, Announced: 2, BFD: "up", Losses: 1},
			{Address: netip.MustParseAddr("2001:db8::1"), ASN: 65000, State: model.SessionConnecting, Since: since,
				Families: []model.BGPFamily{}, Problem: "connect: connection refused"},
		},
		Routes: []model.RouteStatus{
			{Prefix: netip.MustParsePrefix("203.0.113.10/32"), Neighbors: 1},
			{Prefix: netip.MustParsePrefix("2001:db8:1::/64"), Neighbors: 1, Attributes: model.BGPAttributes{MED: &med, Prepend: 1,
				Communities: []model.Community{{Parts: [3]uint32{65001, 100}}, {Parts: [3]uint32{65535, 0xff01}}}}},
		},
	}
}
