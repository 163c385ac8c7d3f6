package main

import (
	"context"
	"strconv"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

var flowCounts = []int{1, 1000, 10_000, 100_000, 1_000_000, 10_000_000}

// stateless are weir's modes that remember no flow: the number of flows must not
// matter to them.
var stateless = []track.Subject{l2dsr, track.Weir(model.IPIP, false, false), track.Weir(model.GUE, false, false), track.Weir(model.NAT, false, false)}

var flowsNotes = []string{
	"cost: the balancer's own time per packet. One core does everything, batch by batch, so the time per packet (1 / throughput) of source, balancer and sink adds up; that of direct, where source and sink are alone, in the same round is subtracted",
	"64-byte TCP packets of established flows, flows at random, 1 VIP with 255 backends; the balancer has one arm: packets leave by the interface that they came in by, as where directors and backends share a switch. reflect is an XDP program that only sends back: its cost is that of veth, and in every other one",
	"iptables: every flow is in the table of tracked flows before it is measured, which has a bucket for each direction of each; 10,000,000 flows would not fit a machine's memory",
}

func measureFlows(ctx context.Context, s *session) error {
	counts := flowCounts
	if s.settings.Smoke {
		counts = []int{1, 1000}
	}
	c := &course{session: s}
	subjects := append([]track.Subject{track.Direct, track.Reflect, track.Iptables}, stateless...)
	for _, flows := range counts {
		for _, subject := range subjects {
			if subject.Name == track.Iptables.Name && flows > manyFlows {
				continue
			}
			c.add(track.Options{Subject: subject, Backends: oneVIP.backends, OneArm: true, Traffic: traffic.Traffic{
				Protocol: model.TCP, Flows: flows, VIPs: oneVIP.vips, Frames: []int{64}}}, flowsAt(flows))
		}
	}
	return c.run(ctx)
}

func flowsAt(flows int) record.Conditions { return record.Conditions{"flows": strconv.Itoa(flows)} }

// flatness is the cost of a packet among 1 M flows divided by that of a single flow, in the mode
// where it matters most.
func flatness() value {
	var all []value
	for _, mode := range stateless {
		all = append(all, ratioOf(subject{mode.Name, flowsAt(manyFlows)}, subject{mode.Name, flowsAt(1)}, record.Cost))
	}
	return largest(all...)
}
