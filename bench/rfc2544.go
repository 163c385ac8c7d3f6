package main

import (
	"context"
	"slices"
	"strconv"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// The frame lengths and the two services of the paper's table 2 (Lee et al., "High-
// Performance Software Load Balancer for Cloud-Native Architecture", 2021).
var frameSizes = []int{64, 128, 256, 512, 1024, 1280, 1510}

// taggedVLAN is the VLAN of tagged frames.
const taggedVLAN = 100

// spread is the number of VIPs and backends that packets are spread over.
type spread struct{ vips, backends int }

var oneVIP, manyVIPs = spread{1, 255}, spread{128, 4000}

func (s spread) String() string { return strconv.Itoa(s.vips) + "x" + strconv.Itoa(s.backends) }

// The numbers of flows: as in the checks, and more than a cache holds.
const fewFlows, manyFlows = 1000, 1_000_000

var l2dsr = track.Weir(model.L2DSR, false, false)

var rfc2544Notes = []string{
	"throughput is what reaches the sink while the source sends as fast as it can, in packets per second; the paper's is of a 25G NIC, whose limit 128-byte frames reach: here no link hides the cost",
	"redirect stands for the paper's loopback. The paper's Mpps with UDP at 64 bytes: loopback 35.41, iptables 1.74, 1x255 28.10, 128x4000 26.91; so to loopback 0.049, 0.79 and 0.76, and 128x4000 to 1x255 0.96. At 128 bytes 20.21, 1.73, 19.73 and 19.63",
	"one VIP with 255 backends; in the columns with 128x4000 in their name 128 VIPs with 4,000 backends in all, VIPs at random. direct has no balancer: source and sink alone",
	"every frame length with UDP and 1,000 flows; TCP and 1,000,000 flows with 64 bytes, where they cost most. Flows come at random, and are known to the DNATs before",
	"weir's process has ended when packets are measured: they do not need it, and several that run at once would meter what all others do. What it takes of its own packets while it runs is in utilization",
	"128x4000 with 1,000,000 flows reads slots from all over 3.2 MB, more than the second cache of most cores: each packet waits for the last cache, or for memory where others of the host fill that (see the machine's random reads)",
	"`tag=802.1Q`: frames have a tag, as the paper's had, and are 4 bytes longer than `frame` says (the paper's packets and bits per second give 68 bytes for 64). The VIP is in that VLAN, and the tag stays as it is",
	"cores=1: one core does everything, batch by batch. cores=2: the source has one, the balancer and the sink the other",
	"DNAT: one rule per VIP over a range of backends, nothing else; room in the tables for all flows, and checksums left unchecked",
}

// variant is traffic of one kind, to one service or many.
type variant struct {
	protocol model.Protocol
	frame    int
	flows    int
	spread   spread
	cores    int
	vlan     uint16 // of the frames' tag; 0: they have none
}

// variants are all variants, in the order of measurement: not every combination with every length.
func variants(smoke bool) []variant {
	var all []variant
	for _, s := range []spread{oneVIP, manyVIPs} {
		for _, frame := range frameSizes {
			all = append(all, variant{model.UDP, frame, fewFlows, s, 1, 0}, variant{model.UDP, frame, fewFlows, s, 1, taggedVLAN})
		}
		all = append(all, variant{model.UDP, 64, manyFlows, s, 1, 0}, variant{model.TCP, 64, fewFlows, s, 1, 0},
			variant{model.TCP, 64, manyFlows, s, 1, 0}, variant{model.UDP, 64, fewFlows, s, 2, 0})
	}
	slices.SortStableFunc(all, func(a, b variant) int { return a.position() - b.position() })
	if smoke {
		return all[:2] // with a tag and without
	}
	return all
}

// position brings variants together that are compared with each other.
func (v variant) position() int {
	return slices.Index(frameSizes, v.frame) + 10*v.cores + 100*slices.Index([]model.Protocol{model.UDP, model.TCP}, v.protocol) + 1000*v.flows
}

// subjects are those worth measuring: one VIP is enough for programs that look at no backend, and
// the cost of DNAT is its table of flows, not its rules.
func (v variant) subjects() []track.Subject {
	dnat := []track.Subject{track.Iptables, track.Nftables}
	switch {
	case v.vlan != 0 && v.spread == oneVIP:
		return []track.Subject{track.Direct, track.Redirect, l2dsr}
	case v.vlan != 0:
		return []track.Subject{l2dsr}
	case v.spread == oneVIP && v.protocol == model.TCP && v.flows == manyFlows:
		return []track.Subject{track.Direct, track.Redirect, l2dsr}
	case v.spread == oneVIP:
		return slices.Concat([]track.Subject{track.Direct, track.Redirect}, dnat, []track.Subject{l2dsr})
	case v.frame == 64 && v.flows == fewFlows && v.cores == 1:
		return append(dnat, l2dsr)
	}
	return []track.Subject{l2dsr}
}

func (v variant) traffic() traffic.Traffic {
	return traffic.Traffic{Protocol: v.protocol, Flows: v.flows, VIPs: v.spread.vips, Frames: []int{v.frame}, VLAN: v.vlan}
}

func (v variant) at() record.Conditions {
	tag := "none"
	if v.vlan != 0 {
		tag = "802.1Q"
	}
	return record.Conditions{"protocol": v.protocol.String(), "frame": strconv.Itoa(v.frame),
		"flows": strconv.Itoa(v.flows), "cores": strconv.Itoa(v.cores), "tag": tag}
}

// name is the name of the subject's column: with many VIPs it has a column of its own.
func (v variant) name(subject track.Subject) string {
	if v.spread == oneVIP {
		return subject.Name
	}
	return subject.Name + " " + v.spread.String()
}

func measureRFC2544(ctx context.Context, s *session) error {
	c := &course{session: s}
	for _, v := range variants(s.settings.Smoke) {
		for _, subject := range v.subjects() {
			l := c.add(track.Options{Subject: subject, Traffic: v.traffic(), Backends: v.spread.backends, TwoCores: v.cores == 2}, v.at())
			l.name = v.name(subject)
		}
	}
	return c.run(ctx)
}

// smallest is 64-byte frames of UDP, on one core.
func smallest(s spread, flows int) variant { return variant{model.UDP, 64, flows, s, 1, 0} }

func manyToOne(flows int) value {
	many, one := smallest(manyVIPs, flows), smallest(oneVIP, flows)
	return ratioOf(subject{many.name(l2dsr), many.at()}, subject{one.name(l2dsr), one.at()}, record.Throughput)
}
