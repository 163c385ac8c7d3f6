package main

import (
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
)

// fakeNeighbor is what the transcripts' director says of the VIPs that it answers for.
var fakeNeighbor = model.NeighborStatus{
	Director: netip.MustParseAddr("10.0.0.2"), Lease: model.LeaseHeld, Taken: 4, Lost: 3,
	Interfaces: []model.NeighborInterfaceStatus{
		{Name: "eth0", MAC: "02:00:00:00:00:02", Announced: 14, Answered: 30, Limited: 1},
		{Name: "eth1", Problem: "it is down, or has no carrier"},
	},
	VIPs: []model.NeighborVIP{
		{VIP: netip.MustParseAddr("203.0.113.10"), State: model.NeighborAnswers, Owner: netip.MustParseAddr("10.0.0.2"),
			Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Interfaces: []string{"eth0"}},
		{VIP: netip.MustParseAddr("203.0.113.11"), State: model.NeighborOther, Owner: netip.MustParseAddr("10.0.0.3"), Interfaces: []string{"eth0"}},
		{VIP: netip.MustParseAddr("2001:db8::53"), State: model.NeighborNobody, Interfaces: []string{},
			Problem: "it is in no network of an interface of director.neighbor that works"},
	},
}
