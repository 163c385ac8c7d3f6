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
	flows := newFlows
	if s.settings.Smoke {
		flows = manyFlows / 10
	}
	c := &course{session: s}
	for _, subject := range []track.Subject{track.Direct, track.Redirect, track.Iptables, track.Nftables, l2dsr, track.Weir(model.NAT, true, false)} {
		l := c.add(track.Options{Subject: subject, Backends: oneVIP.backends, Traffic: traffic.Traffic{Protocol: model.TCP,
			Flows: flows, VIPs: oneVIP.vips, Frames: []int{64}, SYNEvery: 1, InTurn: true}}, record.Conditions{})
		l.before = (*track.Stream).Forget
	}
	return c.run(ctx)
}
