package main

import (
	"context"
	"strconv"

	"weir.io/weir/bench/record"
	"weir.io/weir/bench/track"
	"weir.io/weir/bench/traffic"
	"weir.io/weir/internal/model"
)

var imixNotes = []string{
	"IP packets of 40, 576 and 1,500 bytes as 7 : 4 : 1 by count (frames of 64, 594 and 1,518), UDP, one core",
	"the paper's Mpps: loopback 23.51, iptables 1.52, 1x255 23.21, 128x4000 23.19; so 1x255 to loopback 0.99. Its NIC's 25 Gbit/s were the limit; here no link hides the cost, so this is about the ratio of 64-byte frames",
	"flows come at random, and are known to the DNATs before",
}

func measureIMIX(ctx context.Context, s *session) error {
	s.into.Notes = imixNotes
	c := &course{session: s}
	for _, flows := range []int{fewFlows, manyFlows} {
		if flows == manyFlows && s.settings.Smoke {
			continue
		}
		for _, subject := range []track.Subject{track.Direct, track.Redirect, track.Iptables, track.Nftables, l2dsr} {
			c.add(track.Options{Subject: subject, Backends: oneVIP.backends, Traffic: traffic.Traffic{
				Protocol: model.UDP, Flows: flows, VIPs: oneVIP.vips, Frames: traffic.IMIX}}, imixAt(flows))
		}
	}
	return c.run(ctx)
}

func imixAt(flows int) record.Conditions {
	return record.Conditions{"flows": strconv.Itoa(flows)}
}
