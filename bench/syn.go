package main

import (
	"context"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// newFlows is how many flows begin before one of them comes again.
const newFlows = 10_000_000

var synNotes = []string{
	"every packet is a SYN of a flow that was not there before (10,000,000 in turns), in 64-byte frames, 1 VIP with 255 backends; one core does everything",
	"DNAT: the table of tracked flows is emptied before each sample, and has room for all that one begins, with a bucket for each direction",
	"snat: 62 addresses with 50,000 ports each. Nobody answers, so flows that were quiet for more than a second give way to new ones",
}

func measureSYN(ctx context.Context, s *session) error {
	return s.beginFlows(ctx, traffic.Traffic{Frames: []int{64}},
		track.Direct, track.Redirect, track.Iptables, track.Nftables, l2dsr, track.Weir(model.NAT, true, false))
}

// beginFlows measures SYNs like these, each of a new flow.
func (s *session) beginFlows(ctx context.Context, syns traffic.Traffic, subjects ...track.Subject) error {
	syns.Protocol, syns.VIPs, syns.Flows, syns.SYNEvery, syns.InTurn = model.TCP, oneVIP.vips, newFlows, 1, true
	if s.settings.Smoke {
		syns.Flows = manyFlows / 10
	}
	c := &course{session: s}
	for _, subject := range subjects {
		l := c.add(track.Options{Subject: subject, Backends: oneVIP.backends, Traffic: syns}, record.Conditions{})
		l.before = (*track.Stream).Forget
	}
	return c.run(ctx)
}
