package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"weir.io/weir/bench/machine"
	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// What remembers flows, beside what does not.
var (
	leastConn = track.Placing(model.LeastConn)
	fullNAT   = track.Weir(model.NAT, true, false)
	memoized  = l2dsr.Remembering("flow memory") // all slots have connections of several backends
)

var stateFlows = []int{1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000}

// randomRead is how long a read takes that waits for the one before, in memory of the size of a
// table for the most flows that all are measured with.
var randomRead = record.Quantity{Name: "random-read", Unit: "ns", Better: record.Lower}

// refused is which part of new flows flow memory had no place for.
var refused = record.Quantity{Name: "refused", Unit: "1", Better: record.Lower}

var stateNotes = []string{
	"cost: as in flows: the balancer's own time per packet, on one core, with one arm, of TCP packets of established flows at random, 1 VIP with 255 backends. Every flow is known before it is measured, and sustained where a director can tell",
	"l2dsr remembers nothing. least-conn is l2dsr with that policy, so every packet asks flow memory. flow memory is l2dsr after all backends have been replaced, one half after the other: every slot has connections of several. snat is full NAT",
	"iptables is DNAT with the kernel's connection tracking, with a bucket for each direction of each flow",
	"flow memory has places for four times the flows, for 4,000,000 at least; full NAT has all the ports that it can have, 3.1 million, so it is measured with up to 1,000,000 flows, as iptables is",
	"snat, full: full NAT with 1,000,000 flows and as many ports, so that most flows are not in the first place that is read",
	"by frame: 1,000,000 flows, in which the table is what costs",
	"refused: 1,000,000 new flows, one after the other, fill flow memory to 80 %",
	"random-read: memory of 32 bytes for each place of such a table, of 4,000,000, in lines of 64 bytes",
}

// placesPerFlow is how much room flow memory has here for each flow.
const placesPerFlow = 4

// stateTable is a table for manyFlows, in bytes.
const stateTable = placesPerFlow * manyFlows * 32

func measureState(ctx context.Context, s *session) error {
	counts, frames := stateFlows, frameSizes
	if s.settings.Smoke {
		counts, frames = []int{1, 1000}, nil
	}
	c := &course{session: s, sustain: true}
	add := func(subject track.Subject, flows, frame int) {
		o := track.Options{Subject: subject, Backends: oneVIP.backends, OneArm: true, Traffic: traffic.Traffic{
			Protocol: model.TCP, Flows: flows, VIPs: oneVIP.vips, Frames: []int{frame}}}
		if subject.Name == leastConn.Name || subject.Name == memoized.Name || subject.Name == fullNAT.Name {
			o.FlowRoom = placesPerFlow * max(flows, manyFlows)
		}
		if subject.Name == memoized.Name {
			o.Shared = 100
		}
		c.add(o, stateAt(flows, frame))
	}
	full := fullNAT
	full.Name = "snat, full"
	subjects := []track.Subject{track.Direct, l2dsr, leastConn, memoized, fullNAT, track.Iptables}
	for _, flows := range counts {
		for _, subject := range subjects {
			if flows <= manyFlows || subject.Name != fullNAT.Name && subject.Name != track.Iptables.Name {
				add(subject, flows, frameSizes[0])
			}
		}
	}
	add(full, min(manyFlows, slices.Max(counts)), frameSizes[0])
	for _, frame := range frames[min(1, len(frames)):] {
		for _, subject := range subjects {
			add(subject, manyFlows, frame)
		}
	}
	c.each = func() {
		s.add("memory", record.Conditions{"bytes": strconv.Itoa(stateTable)}, randomRead, machine.Latency(stateTable))
	}
	return errors.Join(c.run(ctx), measureRefused(ctx, s, counts[len(counts)-1:][0]))
}

// measureRefused fills flow memory to four fifths.
func measureRefused(ctx context.Context, s *session, flows int) (err error) {
	flows = min(flows, manyFlows)
	t, err := track.Start(ctx, track.Options{Subject: memoized, Backends: oneVIP.backends, OneArm: true, Shared: 100, FlowRoom: flows * 5 / 4,
		Traffic: traffic.Traffic{Protocol: model.TCP, Flows: flows, VIPs: oneVIP.vips, Frames: frameSizes[:1]}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	stream, err := t.Stream(t.Traffic)
	if err != nil {
		return err
	}
	if err := stream.Open(); err != nil {
		return err
	}
	inserted, without, err := t.FlowsInserted(ctx)
	if err != nil {
		return err
	}
	if inserted+without != uint64(flows) {
		return fmt.Errorf("%d flows were remembered and %d refused, of %d", inserted, without, flows)
	}
	s.add(memoized.Name, smallFrames(flows), refused, float64(without)/float64(flows))
	return nil
}

func stateAt(flows, frame int) record.Conditions {
	return record.Conditions{"flows": strconv.Itoa(flows), "frame": strconv.Itoa(frame)}
}

// smallFrames is 64-byte frames of that many flows.
func smallFrames(flows int) record.Conditions { return stateAt(flows, frameSizes[0]) }

// misses is how many reads of memory a packet waits for because there are a million flows and not
// one, in the subject that waits for most.
func misses(of ...track.Subject) value {
	return func(s *record.Scenario) (float64, error) {
		most := math.Inf(-1)
		reads, err := subject{"memory", record.Conditions{"bytes": strconv.Itoa(stateTable)}}.find(s, randomRead)
		if err != nil {
			return math.NaN(), err
		}
		for _, one := range of {
			many, err := subject{one.Name, smallFrames(manyFlows)}.find(s, record.Cost)
			if err != nil {
				return math.NaN(), err
			}
			few, err := subject{one.Name, smallFrames(1)}.find(s, record.Cost)
			if err != nil {
				return math.NaN(), err
			}
			if len(many.Rounds) != len(reads.Rounds) || len(few.Rounds) != len(reads.Rounds) {
				return math.NaN(), fmt.Errorf("%s was measured in %d rounds with many flows, %d with one, and memory in %d",
					one.Name, len(many.Rounds), len(few.Rounds), len(reads.Rounds))
			}
			var each []float64
			for round, read := range reads.Rounds {
				each = append(each, (many.Rounds[round]-few.Rounds[round])/read)
			}
			most = max(most, record.Median(each))
		}
		return most, nil
	}
}

// toStateless is the cost of a single flow in the worst of these, to that where nothing is
// remembered.
func toStateless(of ...track.Subject) value {
	var all []value
	for _, one := range of {
		all = append(all, ratio(one.Name, l2dsr.Name, smallFrames(1), record.Cost))
	}
	return largest(all...)
}
