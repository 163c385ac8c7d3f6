package main

import (
	"context"
	"fmt"
	"strconv"

	"weir.io/weir/bench/program"
	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
	"weir.io/weir/lab/version"
)

// landedTables is the commit whose tables of flows the steered ones are compared with: the one before flow
// memory and full NAT's table were made anew.
const landedTables = "b0b593b"

var steered = l2dsr.Remembering("steered")

// steeredCPU is also the receive queue that has the flows with rules: queue 0 has none.
const steeredCPU = 1

var steeringCounts = []int{1, 10, 100, 1000, 2000, 4000, 8000, 100_000}

// mostRules is how many rules the NIC has: as HNLB's at most.
const mostRules = 8000

// steeredRates are how many packets are sent per second where a CPU's load is measured.
var steeredRates = []float64{250e3, 500e3, 1e6, 2e6, 4e6}

var steeringNotes = []string{
	"cost: as in flows: the balancer's own time per packet, on one core, with one arm, of TCP packets of established flows at random, 1 VIP with 255 backends. reflect is an XDP program that only sends back: its cost is that of veth, and in every other one",
	"steered: l2dsr with a rule for each flow, 8,000 at most, and a receive queue for them. The rules are in an emulated NIC: a veth takes what comes by the queue of the sending CPU. Beyond 8,000 flows those without a rule come to the same queue, as no NIC would lead them",
	"l2dsr keeps no state. least-conn is l2dsr with that policy, so every packet asks flow memory. snat is full NAT. Their tables are also those of " + landedTables + ", built from the repository's history",
	"load: the balancer's part of a core at that rate, 64-byte packets; what cannot be sent at it has none. The source's time is without what it waits, and less that of direct at the same rate",
	"HNLB's figures 4 to 6 are the highest rate by rules and frame length, 7 and 8 its utilization, with DPDK and a NIC of 10 Gbit/s: its rules gain half of what software carries with 8,000 connections. The latency of a NIC with more rules (section II-B) is not measured: an emulated NIC says nothing about it",
	"run: the program alone, of a packet whose flow has a rule (by rule), and of one that has none (by ring)",
	"elephants: a router forwards 64-byte packets of 1,000,000 flows to the balancer, the n-th largest with a share like n^-1.1, and the director has room for 2,000 rules. After 15 s of packets: which share of them the flows with rules have (of what is sent, known beforehand), to that of the 2,000 largest, which is `largest`",
	"disturbed: a router forwards packets of 4,000 flows to the balancer, which has 2,000 rules and a ring that is swapped once per second. Besides the director, something else changes 1,000 rules per second at random: it deletes them, and lets them lead to any queue. misdirected is as in churn: one packet of 64 is looked at, of each backend",
}

func measureSteering(ctx context.Context, s *session) error {
	counts, frames, rates, loaded := steeringCounts, frameSizes, steeredRates, []int{fewFlows, mostRules}
	if s.settings.Smoke {
		counts, frames, rates, loaded = []int{1, 1000}, nil, steeredRates[:1], []int{fewFlows}
	}
	older, err := s.landedTables(ctx)
	if err != nil {
		return err
	}
	c := &course{session: s, sustain: true}
	add := func(subject track.Subject, name string, flows, frame int, rate float64, old string) {
		o := track.Options{Subject: subject, Backends: oneVIP.backends, OneArm: true, SourceCPU: steeredCPU, Older: old,
			Traffic: traffic.Traffic{Protocol: model.TCP, Flows: flows, VIPs: oneVIP.vips, Frames: []int{frame}}}
		if name == steered.Name {
			o.Steered = min(flows, mostRules)
		}
		at := stateAt(flows, frame)
		if rate > 0 {
			at["rate"] = strconv.FormatFloat(rate, 'f', 0, 64)
		}
		l := c.add(o, at)
		l.name, l.rate, l.sends, l.loads = name, rate, rate > 0, rate > 0
	}
	all := func(flows, frame int) {
		for _, subject := range []track.Subject{track.Direct, track.Reflect, l2dsr, steered, leastConn, fullNAT, track.Iptables} {
			add(subject, subject.Name, flows, frame, 0, "")
		}
		if older != "" {
			for _, subject := range []track.Subject{leastConn, fullNAT} {
				add(subject, before(subject), flows, frame, 0, older)
			}
		}
	}
	if err := s.measureRules(ctx); err != nil {
		return err
	}
	for _, flows := range counts {
		all(flows, frameSizes[0])
	}
	for _, frame := range frames[min(1, len(frames)):] {
		all(mostRules, frame)
	}
	for _, rate := range rates {
		for _, flows := range loaded {
			for _, subject := range []track.Subject{track.Direct, l2dsr, steered, leastConn, fullNAT, track.Iptables} {
				add(subject, subject.Name, flows, frameSizes[0], rate, "")
			}
		}
	}
	if err := c.run(ctx); err != nil {
		return err
	}
	s.noteTables()
	// The tracks of the course are no longer needed.
	if err := s.close(); err != nil {
		return err
	}
	if err := s.measureElephants(ctx); err != nil {
		return err
	}
	if err := s.close(); err != nil {
		return err
	}
	return s.measureDisturbed(ctx)
}

// noteTables says how steered flows compare with tables of flows, today's as well, and which ratio a
// program that only sends back would have: through veths no balancer has a larger one.
func (s *session) noteTables() {
	for _, table := range []string{leastConn.Name, fullNAT.Name, before(leastConn), before(fullNAT)} {
		at := smallFrames(mostRules)
		ours, err := ratio(steered.Name, table, at, record.Throughput)(s.into)
		if err != nil { // a short run, or one without the history
			continue
		}
		ceiling, err := ratio(track.Reflect.Name, table, at, record.Throughput)(s.into)
		if err == nil {
			s.note("with %d flows steered has %.2f times the packets per second of %s, and reflect, the ceiling, %.2f times", mostRules, ours, table, ceiling)
		}
	}
}

// before is the name of a subject as it was in [landedTables].
func before(subject track.Subject) string { return subject.Name + ", " + landedTables }

// ruleToRing is what the program takes for a packet by its flow's rule, to what it takes by the ring.
func ruleToRing() value {
	var both []value
	for _, vip6 := range []bool{false, true} {
		by := func(how string) subject {
			at := modesAt(vip6)
			at["backend"] = how
			return subject{l2dsr.Name, at}
		}
		both = append(both, ratioOf(by(program.ByRule), by(program.ByRing), runTime))
	}
	return largest(both...)
}

// landedTables is the path of the weir with the tables that steered flows are compared with. A smoke run goes
// without it if the history does not have it.
func (s *session) landedTables(ctx context.Context) (string, error) {
	commit, err := version.Commit(ctx, landedTables)
	if err != nil && s.settings.Smoke {
		s.note("the tables of %s were left out: %v", landedTables, err)
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return version.Older(ctx, commit)
}

// measureRules measures the program alone on packets of flows with rules, beside the same without.
func (s *session) measureRules(ctx context.Context) error {
	lab, err := s.newLab()
	if err != nil {
		return err
	}
	binary, err := version.WithNICs(ctx)
	if err != nil {
		return err
	}
	this, err := thisVersion()
	if err != nil {
		return err
	}
	var steps []func(context.Context) error
	passes, repeats := passes, versionRepeats
	if s.settings.Smoke {
		passes, repeats = smokePasses, smokeVersionRepeats
	}
	for _, vip6 := range s.families() {
		b, err := program.NewSteered(ctx, lab, binary, this.Object, vip6)
		if err != nil {
			return fmt.Errorf("%s: %w", familyNames[vip6], err)
		}
		s.atEnd(b.Close)
		steps = append(steps, func(ctx context.Context) error {
			took, err := b.Measure(ctx, passes, repeats)
			for subject, ns := range took {
				at := modesAt(vip6)
				at["backend"] = subject.Version
				s.add(subject.Way, at, runTime, ns)
			}
			return err
		})
	}
	return s.inRounds(ctx, steps...)
}
