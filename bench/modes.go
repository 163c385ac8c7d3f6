package main

import (
	"context"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

var modesNotes = []string{
	"TCP, 1,000 flows at random, 128-byte frames (before the balancer) of both families, 1 VIP with 255 backends, one core",
	"vip is the family of what the source sends; outer that of a tunnel's own header: both are the same without one",
	"the packets of snat are of flows that began with a SYN; nobody answers, so what it does for replies is not in it",
}

// familyNames are the names in documents and conditions.
var familyNames = map[bool]string{false: "ipv4", true: "ipv6"}

// families are the families to measure; a smoke run measures only one.
func (s *session) families() []bool {
	if s.settings.Smoke {
		return []bool{false}
	}
	return []bool{false, true}
}

func measureModes(ctx context.Context, s *session) error {
	c := &course{session: s}
	for _, vip6 := range s.families() {
		for _, subject := range modeSubjects {
			c.add(track.Options{Subject: subject, Backends: oneVIP.backends, Traffic: traffic.Traffic{
				IPv6: vip6, Protocol: model.TCP, Flows: fewFlows, VIPs: oneVIP.vips, Frames: []int{128}}}, modesAt(vip6))
		}
	}
	return c.run(ctx)
}

// modeSubjects are all modes, those with tunnels in both families.
var modeSubjects = []track.Subject{
	track.Direct, track.Redirect, track.Iptables, track.Nftables, l2dsr,
	track.Weir(model.IPIP, false, false), track.Weir(model.IPIP, false, true),
	track.Weir(model.GUE, false, false), track.Weir(model.GUE, false, true),
	track.Weir(model.NAT, false, false), track.Weir(model.NAT, true, false),
}

func modesAt(vip6 bool) record.Conditions { return record.Conditions{"vip": familyNames[vip6]} }

// ipv6Cost is the cost of an IPv6 packet divided by that of an IPv4 packet, in the mode where it
// matters most. A tunnel's own header is the same for both.
func ipv6Cost() value {
	var all []value
	for _, mode := range modeSubjects {
		if mode.IsWeir() {
			all = append(all, ratioOf(subject{mode.Name, modesAt(true)}, subject{mode.Name, modesAt(false)}, record.Cost))
		}
	}
	return largest(all...)
}
