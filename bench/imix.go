package main

import (
	"context"
	"strconv"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

var imixNotes = []string{
	"IP packets of 40, 576 and 1,500 bytes as 7 : 4 : 1 by count (frames of 64, 594 and 1,518 bytes, 362 on average), UDP, one core",
	"`mix=by bytes`: all frames of 64 bytes together have 7 parts of the bytes, those of 594 have 4, and those of 1,518 have 1: 166, 10 and 1 frames, 102 bytes on average. The paper's mix is by bytes, too: its 25 Gbit/s and 23.51 Mpps give 113 bytes, with a tag in each frame (these would have 106)",
	"the paper's Mpps: loopback 23.51, iptables 1.52, 1x255 23.21, 128x4000 23.19; so 1x255 to loopback 0.99. Its NIC's 25 Gbit/s were the limit; here no link hides the cost, so this is about the ratio of 64-byte frames",
	"flows come at random, and are known to the DNATs before",
	"link: the source sends as fast as goes (none), or no faster than a link of that speed carries these frames, each with its preamble and gap (20 bytes; IEEE 802.3), as the paper's NIC did. A queue's limit on a veth would not do, because XDP sends past queues",
}

// linkSpeed is the speed of the link to which the source is limited, in bit/s: here a bare redirect
// fills it, and iptables does not.
const linkSpeed = 5e9

// betweenFrames is what a link carries besides each frame, in bytes.
const betweenFrames = 20

// imixRate returns how many packets of the mix a link carries per second.
func imixRate(speed float64) float64 {
	bytes := 0
	for _, frame := range traffic.IMIX {
		bytes += frame + betweenFrames
	}
	return speed / 8 * float64(len(traffic.IMIX)) / float64(bytes)
}

func measureIMIX(ctx context.Context, s *session) error {
	c := &course{session: s}
	add := func(mix string, flows int, at record.Conditions, subjects ...track.Subject) (added []*lane) {
		for _, subject := range subjects {
			added = append(added, c.add(track.Options{Subject: subject, Backends: oneVIP.backends, Traffic: traffic.Traffic{
				Protocol: model.UDP, Flows: flows, VIPs: oneVIP.vips, Frames: mixes[mix]}}, at))
		}
		return added
	}
	for _, flows := range []int{fewFlows, manyFlows} {
		if flows == manyFlows && s.settings.Smoke {
			continue
		}
		for _, mix := range []string{byCount, byBytes} {
			add(mix, flows, imixAt(flows, mix), track.Direct, track.Redirect, track.Iptables, track.Nftables, l2dsr)
		}
	}
	for _, l := range add(byCount, fewFlows, imixOnLink, track.Redirect, track.Iptables, l2dsr) {
		l.rate = imixRate(linkSpeed)
	}
	return c.run(ctx)
}

// The mixes: whose shares are 7 : 4 : 1.
const byCount, byBytes = "by count", "by bytes"

var mixes = map[string][]int{byCount: traffic.IMIX, byBytes: traffic.IMIXByBytes}

func imixAt(flows int, mix string) record.Conditions {
	return record.Conditions{"flows": strconv.Itoa(flows), "link": "none", "mix": mix}
}

var imixOnLink = record.Conditions{"flows": strconv.Itoa(fewFlows), "link": record.WithUnit(linkSpeed, "bit/s"), "mix": byCount}
