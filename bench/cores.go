package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"

	"weir.io/weir/bench/sim"
	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// coresSubjects are what is measured with several CPUs.
var coresSubjects = []track.Subject{track.Direct, track.Reflect, l2dsr, track.Generic(l2dsr), track.Iptables}

// coresSamples is how many samples long a measurement is: its beginning and its end are not left out.
const coresSamples = 4

// coresOrdered are those of them of which more CPUs must carry more.
var coresOrdered = []track.Subject{l2dsr, track.Generic(l2dsr), track.Iptables}

// sizes are which parts of the packets flows have.
type sizes struct {
	name string
	zipf float64 // of flows; 0: all have the same
}

var (
	even     = sizes{name: "even"}
	uneven   = sizes{name: "uneven", zipf: zipf}
	allSizes = []sizes{even, uneven}
)

// simulatedCPUs are what is worked out beyond what the machine has.
var simulatedCPUs = []int{1, 2, 4, 8, 16, 32}

var coresNotes = []string{
	"by measurement: each CPU has a receive queue and a transmit queue of a veth. It sends to its own queue, and does all that these packets need, of source, balancer and sink, batch by batch: so no CPU works for another, as where each queue's interrupt has a CPU, and nothing is lost. Source and sink share the CPUs with the balancer: direct is what they take by themselves, and the most that more CPUs can give here",
	"64-byte TCP packets of 1,000 established flows, each of one CPU, 1 VIP with 255 backends, one arm. throughput: packets per second until the last CPU has sent its part",
	"even: every CPU has the same part of the packets. uneven: of the flows the n-th largest has a share like n^-1.1, and CPUs have the parts that a hash of flows gives queues, in the mean over 1,000 hashes: the busiest one is the limit",
	"by simulation: not measured. The balancer alone, with a CPU for each queue: 1 / (its own time per packet on one CPU x the share of the busiest queue), of 1,000 flows by a hash, even ones as well. Its own time is as in flows: that of direct is subtracted. It has no contention for locks, caches or memory, so it is the most that could be. iptables' table is shared by all CPUs, and is the farthest from it",
	"cores_order asks for the order alone (more CPUs carry more): how much more depends on the machine, because CPUs that are threads of one core share its parts, and everything else that the machine does takes the time of one of them. What direct gains is the most that a balancer can",
}

func measureCores(ctx context.Context, s *session) error {
	counts := coreCounts(runtime.NumCPU())
	if len(counts) == 1 {
		s.note("the machine has one CPU: there is nothing to compare")
	}
	var steps []func(context.Context) error
	base := map[string]*track.Sample{} // of direct on one CPU, by spread
	for _, subject := range coresSubjects {
		way := traffic.Traffic{Protocol: model.TCP, Flows: fewFlows, VIPs: oneVIP.vips, Frames: []int{64}}
		t, err := track.Start(ctx, track.Options{Subject: subject, Backends: oneVIP.backends, OneArm: true, Traffic: way, CPUs: counts[len(counts)-1]})
		if err != nil {
			return err
		}
		s.atEnd(t.Close)
		for _, cpus := range counts {
			for _, of := range allSizes {
				step, err := s.coresStep(t, way, cpus, of, base)
				if err != nil {
					return err
				}
				steps = append(steps, step)
			}
		}
	}
	return s.inRounds(ctx, steps...)
}

// coreCounts are 1, 2, 4 and so on, as many as there are.
func coreCounts(most int) (counts []int) {
	for n := 1; n <= most; n *= 2 {
		counts = append(counts, n)
	}
	return counts
}

// coresStep measures a subject with that many CPUs, and simulates it with more after its time on one.
func (s *session) coresStep(t *track.Track, way traffic.Traffic, cpus int, of sizes, base map[string]*track.Sample) (func(context.Context) error, error) {
	shares := make([]float64, cpus)
	for i := range shares {
		shares[i] = 1 / float64(cpus)
	}
	if of.zipf > 0 {
		shares = sim.QueueShares(cpus, sim.ZipfWeights(way.Flows, of.zipf), 1)
	}
	way.Zipf = of.zipf
	p, err := t.Parallel(way, shares)
	if err != nil {
		return nil, err
	}
	if err := p.Open(); err != nil {
		return nil, err
	}
	return func(context.Context) error {
		sample, err := p.Measure(coresSamples * s.sample())
		if err != nil {
			return fmt.Errorf("%d CPUs, %s flows: %w", cpus, of.name, err)
		}
		name := t.Subject.Name
		s.add(name, coresAt(cpus, of, measured), record.Throughput, sample.Rate)
		if sample.Lost() > 0 {
			s.say("  %s with %d CPUs, %s flows, lost %.2g of the packets", name, cpus, of.name, sample.Lost())
		}
		switch {
		case cpus > 1:
		case name == track.Direct.Name:
			base[of.name] = &sample
		default:
			own := sample.Nanoseconds() - base[of.name].Nanoseconds()
			s.add(name, coresAt(1, of, measured), record.Cost, own)
			s.simulateCores(name, way.Flows, of, own)
		}
		return nil
	}, nil
}

// simulateCores says what CPUs would carry of which each packet takes that time.
func (s *session) simulateCores(name string, flows int, of sizes, nanoseconds float64) {
	for _, cpus := range simulatedCPUs {
		busiest := sim.QueueShares(cpus, sim.ZipfWeights(flows, of.zipf), 1)[0]
		s.add(name, coresAt(cpus, of, simulation), record.Throughput, 1e9/(nanoseconds*busiest))
	}
}

// Whether a figure was measured.
const (
	measured   = "measurement"
	simulation = "simulation"
)

func coresAt(cpus int, of sizes, by string) record.Conditions {
	return record.Conditions{"cpus": strconv.Itoa(cpus), "flows": of.name, "by": by}
}

// coresOrder is the least that twice as many CPUs carry, to what half of them do, as measured with even flows.
func coresOrder(s *record.Scenario) (float64, error) {
	least := math.Inf(1)
	for _, subject := range coresOrdered {
		for cpus := 2; cpus == 2 || s.Find(subject.Name, coresAt(cpus, even, measured), record.Throughput.Name) != nil; cpus *= 2 {
			gain, err := ratioOf(subjectAt(subject, cpus), subjectAt(subject, cpus/2), record.Throughput)(s)
			if err != nil {
				return gain, err
			}
			least = min(least, gain)
		}
	}
	return least, nil
}

func subjectAt(of track.Subject, cpus int) subject {
	return subject{of.Name, coresAt(cpus, even, measured)}
}
