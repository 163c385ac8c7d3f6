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

// fanOutLoad is how much is sent, of what another CPU carries.
const fanOutLoad = 0.8

var fanOutNotes = []string{
	"cost: what a packet takes of the receiving core, on which the source is, too: its time without what it waits, without that of what is there without a balancer: the source and, without fan-out, the sink (direct), which with fan-out is on another core (direct, unseen: its packets are dropped at once). 64-byte TCP packets of 1,000 established flows at random, 1 VIP with 255 backends, one arm",
	"without fan-out the receiving core does everything; with it another core has the director and the sink. Packets of a mode are sent at one rate with fan-out, without, and by direct: at 0.8 of what the other core carries. What does not fit there is dropped, and freeing it takes the receiving core longer than giving it away",
	"64 packets come at a time, as a full poll has them: the receiving core is the one that has too much to do. With fewer, it wakes the other core more often",
}

func measureFanOut(ctx context.Context, s *session) error {
	c := &course{session: s}
	add := func(subject track.Subject, name string, at record.Conditions, fanOut, unseen bool) *lane {
		l := c.add(track.Options{Subject: subject, Backends: oneVIP.backends, OneArm: true, FanOut: fanOut, Unseen: unseen,
			Traffic: traffic.Traffic{Protocol: model.TCP, Flows: fewFlows, VIPs: oneVIP.vips, Frames: frameSizes[:1]}}, at)
		l.name, l.sends = name, true
		return l
	}
	for _, subject := range expensive {
		at := fanOutAt(subject)
		lanes := []*lane{
			add(track.Direct, track.Direct.Name, at, false, false),
			add(subject, subject.Name, at, false, false),
			add(track.Direct, track.Direct.Name+", unseen", at, false, true), // what the next one is compared with
			add(subject, fannedOut(subject), at, true, false),
		}
		pace := c.begin
		c.begin = func() error {
			if pace != nil {
				if err := pace(); err != nil {
					return err
				}
			}
			return c.pace(lanes)
		}
	}
	return c.run(ctx)
}

// fanOutAt names the rate at which packets of a subject are sent.
func fanOutAt(subject track.Subject) record.Conditions {
	return record.Conditions{"rate": "of " + subject.Name}
}

// pace has lanes send at one rate: that much of what the last one carries.
func (c *course) pace(lanes []*lane) error {
	fanned := lanes[len(lanes)-1]
	if err := fanned.before(fanned.stream); err != nil {
		return err
	}
	sample, err := fanned.stream.Measure(c.session.sample())
	if err != nil {
		return err
	}
	for _, l := range lanes {
		l.rate = fanOutLoad * sample.Rate
	}
	return nil
}

// receiverCost is what the receiving core takes with fan-out to what it takes without: the worst.
func receiverCost() value {
	var all []value
	for _, subject := range expensive {
		all = append(all, ratio(fannedOut(subject), subject.Name, fanOutAt(subject), record.Cost))
	}
	return largest(all...)
}
