package main

import (
	"context"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// fannedOut is a subject whose packets are given to another CPU.
func fannedOut(subject track.Subject) string { return subject.Name + ", fan-out" }

// expensive are the subjects whose packets it pays to give to another CPU.
var expensive = []track.Subject{track.Weir(model.GUE, false, false), fullNAT}

var fanOutNotes = []string{
	"cost: what a packet takes of the receiving core, on which the source is, too: its time by what it sends, without that of direct, where source and sink are alone. 64-byte TCP packets of 1,000 established flows at random, 1 VIP with 255 backends, one arm",
	"without fan-out the receiving core does everything; with it another core has the director and the sink. What does not fit there is dropped, and counted by the director (weir_fan_out_packets_total)",
}

func measureFanOut(ctx context.Context, s *session) error {
	c := &course{session: s}
	add := func(subject track.Subject, name string, fanOut bool) {
		l := c.add(track.Options{Subject: subject, Backends: oneVIP.backends, OneArm: true, FanOut: fanOut,
			Traffic: traffic.Traffic{Protocol: model.TCP, Flows: fewFlows, VIPs: oneVIP.vips, Frames: frameSizes[:1]}}, record.Conditions{})
		l.name, l.sends = name, fanOut
	}
	add(track.Direct, track.Direct.Name, false)
	for _, subject := range expensive {
		add(subject, subject.Name, false)
		add(subject, fannedOut(subject), true)
	}
	return c.run(ctx)
}

// receiverCost is what the receiving core takes with fan-out to what it takes without: the worst.
func receiverCost() value {
	var all []value
	for _, subject := range expensive {
		all = append(all, ratio(fannedOut(subject), subject.Name, record.Conditions{}, record.Cost))
	}
	return largest(all...)
}
