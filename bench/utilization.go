package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/gonum/stat"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/utilization"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// What the sweep measures, all about the balancer's CPU except the first two.
var (
	offeredRate = record.Quantity{Name: "offered", Unit: "packet/s", Better: record.Neither}
	lostShare   = record.Quantity{Name: "lost", Unit: "1", Better: record.Lower}
	inUse       = record.Quantity{Name: "utilization", Unit: "1", Better: record.Neither}
	linearity   = record.Quantity{Name: "linearity", Unit: "1", Better: record.Higher}
	firstLoss   = record.Quantity{Name: "first-loss", Unit: "packet/s", Better: record.Higher}
	atFirstLoss = record.Quantity{Name: "at-first-loss", Unit: "1", Better: record.Neither}
)

// formulas are possible definitions of utilization: the one that weir exports, and the two between
// which it lies.
var formulas = []struct {
	subject string
	of      func(utilization.CPU) float64
}{
	{exported, func(c utilization.CPU) float64 { return c.Utilization }},
	{"busy", func(c utilization.CPU) float64 { return c.Busy }},
	{"product", utilization.CPU.Product},
}

const exported = "weir"

// The sweep's steps are tenths of the most that was ever forwarded; the last two are
// beyond it.
const (
	sweepSteps   = 12
	sweepDivisor = 10
)

// lossFrom is the share of lost packets above which a rate is too great. Less is lost at any rate,
// whenever another program takes the CPU for longer than a veth's 256 entries last. Only the best
// of several pieces counts, because on a busy machine that may be most of the losses.
const (
	lossFrom = 0.01
	pieces   = 5
)

var utilizationNotes = []string{
	"weir: the time that the packets would have taken had all polls been full, by the time that went by (internal/utilization); busy: the share of time in packet work; product: that times how full the polls were, the formula of HNLB (section IV) for DPDK",
	"one service with 255 backends, l2dsr, 1,000 flows of TCP, 64 bytes; source on one core, director and sink on the other (threaded NAPI)",
	"load: the offered rate by the most that was forwarded before the first round. Each round takes, of five pieces of a sample, the one that lost least, and a load has lost packets when in every round more than 1 % were: some are lost at any rate when something else, such as a hypervisor, takes the CPU for longer than a veth's 256 entries last",
	"linearity: R² of the straight line that is nearest to the medians, from no load to the first one with loss, over the packets per second that were really sent",
	"throughput, source and sink on one core: of a bare redirect with the programs that measure, and without (a veth is polled twice for every 64 packets, and the softirq is entered more than once); of l2dsr while weir run runs, which measures a tenth of the time, and after it has ended",
}

func measureUtilization(ctx context.Context, s *session) error {
	if err := measureItsCost(ctx, s); err != nil {
		return fmt.Errorf("cost: %w", err)
	}
	w, err := newSweep(ctx)
	if err != nil {
		return err
	}
	err = w.run(ctx, s)
	return errors.Join(err, w.track.Close(), w.meter.Close())
}

func utilizationTrack(ctx context.Context, subject track.Subject, twoCores bool) (*track.Track, error) {
	return track.Start(ctx, track.Options{Subject: subject, Backends: 255, TwoCores: twoCores,
		Traffic: traffic.Traffic{Protocol: model.TCP, Flows: 1000, VIPs: 1, Frames: []int{64}}})
}

// measureItsCost measures what counting costs the cheapest forwarder, all the time, and what a
// director's process, which counts a tenth of the time, costs its own packets: that for at least as
// long as a director takes to count once.
func measureItsCost(ctx context.Context, s *session) error {
	var meter *utilization.Meter
	counting := func(ctx context.Context, _ *track.Track) (err error) { meter, err = utilization.Open(); return err }
	counted := func(*track.Track) error { return meter.Close() }
	err := s.withAndWithout(ctx, track.Redirect, s.sample(), "meter", "no", "yes", counting, counted)
	if err != nil {
		return err
	}
	return s.withAndWithout(ctx, l2dsr, max(time.Second, s.sample()), "process", "ended", "runs",
		func(ctx context.Context, t *track.Track) error { return t.StartDirector(ctx) }, (*track.Track).StopDirector)
}

// withAndWithout measures a subject while something does not run, and while it does. The condition
// that tells which has one of these values.
func (s *session) withAndWithout(ctx context.Context, subject track.Subject, length time.Duration, condition, without, with string,
	start func(context.Context, *track.Track) error, stop func(*track.Track) error) error {
	t, err := utilizationTrack(ctx, subject, false)
	if err != nil {
		return err
	}
	sample := func(which string) error {
		sample, err := t.Measure(length)
		if err == nil {
			s.add(subject.Name, record.Conditions{condition: which}, record.Throughput, sample.Rate)
		}
		return err
	}
	err = s.inRounds(ctx, func(context.Context) error { return sample(without) }, func(ctx context.Context) error {
		if err := start(ctx, t); err != nil {
			return err
		}
		return errors.Join(sample(with), stop(t))
	})
	return errors.Join(err, t.Close())
}

// sweep sends to a director at one rate after another.
type sweep struct {
	track *track.Track
	meter *utilization.Meter
	most  float64 // the most packets per second that were ever forwarded
}

func newSweep(ctx context.Context) (_ *sweep, err error) {
	w := &sweep{}
	if w.meter, err = utilization.Open(); err != nil {
		return nil, err
	}
	if w.track, err = utilizationTrack(ctx, track.Weir(model.L2DSR, false, false), true); err != nil {
		return nil, errors.Join(err, w.meter.Close())
	}
	w.track.Meter = w.meter
	return w, nil
}

func (w *sweep) run(ctx context.Context, s *session) error {
	if err := w.findMost(ctx, s); err != nil {
		return err
	}
	s.say("the most that is forwarded: %s", record.WithUnit(w.most, "packet/s"))
	var steps []func(context.Context) error
	for n := range sweepSteps + 1 {
		steps = append(steps, func(context.Context) error { return w.measure(n, s) })
	}
	if err := s.inRounds(ctx, steps...); err != nil {
		return err
	}
	conclude(s.into)
	return nil
}

// findMost raises the rate until much is lost, or the source can send no faster. Sending as fast as
// possible is beyond that point: then the two cores contend for the veth's ring.
func (w *sweep) findMost(ctx context.Context, s *session) error {
	sample, err := w.track.Measure(s.sample())
	if err != nil {
		return err
	}
	w.most = sample.Rate
	for rate := sample.Rate / 2; ctx.Err() == nil; rate *= 1.2 {
		at, err := w.track.MeasureAt(rate, s.sample())
		if err != nil {
			return err
		}
		w.most = max(w.most, at.Rate)
		if at.Lost() > 10*lossFrom || at.Offered() < rate/2 {
			return nil
		}
	}
	return ctx.Err()
}

// measure takes the sample of one step in one round.
func (w *sweep) measure(n int, s *session) (err error) {
	at := loadOf(n)
	var offered, lost float64
	var cpu utilization.CPU
	if n == 0 {
		cpu, err = w.idle(s.sample())
	} else {
		var sample track.Sample
		sample, err = w.best(float64(n)*w.most/sweepDivisor, s.sample())
		offered, lost, cpu = sample.Offered(), sample.Lost(), sample.Work
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", at["load"], err)
	}
	for _, f := range formulas {
		s.add(f.subject, at, inUse, f.of(cpu))
	}
	s.add(exported, at, offeredRate, offered)
	s.add(exported, at, lostShare, lost)
	return nil
}

// best is the piece of a sample that lost least. If another program takes a CPU for a moment,
// packets are lost for which it had time.
func (w *sweep) best(rate float64, length time.Duration) (best track.Sample, err error) {
	for n := range pieces {
		sample, err := w.track.MeasureAt(rate, length/pieces)
		if err != nil {
			return track.Sample{}, err
		}
		if n == 0 || sample.Lost() < best.Lost() {
			best = sample
		}
	}
	return best, nil
}

// idle is the work of the balancer's CPU while nothing is sent.
func (w *sweep) idle(length time.Duration) (utilization.CPU, error) {
	from, err := w.meter.Read()
	if err != nil {
		return utilization.CPU{}, err
	}
	time.Sleep(length) // the measured time
	to, err := w.meter.Read()
	if err != nil {
		return utilization.CPU{}, err
	}
	return utilization.Between(from, to)[track.BalancerCPU], nil
}

func loadOf(n int) record.Conditions {
	return record.Conditions{"load": strconv.FormatFloat(float64(n)/sweepDivisor, 'f', 1, 64)}
}

// conclude finds the first step that loses packets, and how straight the lines are up to there. If
// no step does, it concludes nothing, and the checks have no value. R² of the least-squares line, the
// share of the variance that it explains, is the square of the correlation.
func conclude(s *record.Scenario) {
	last := firstLossy(s)
	if last < 0 {
		return
	}
	nothing := record.Conditions{}
	s.Add(exported, nothing, firstLoss, found(s, exported, loadOf(last), offeredRate))
	for _, f := range formulas {
		var x, y []float64
		for n := range last + 1 {
			x = append(x, found(s, exported, loadOf(n), offeredRate))
			y = append(y, found(s, f.subject, loadOf(n), inUse))
		}
		s.Add(f.subject, nothing, atFirstLoss, y[last])
		s.Add(f.subject, nothing, linearity, math.Pow(stat.Correlation(x, y, nil), 2))
	}
}

// firstLossy returns the first step that lost packets in every round, -1 if none did.
func firstLossy(s *record.Scenario) int {
	for n := range sweepSteps + 1 {
		m := s.Find(exported, loadOf(n), lostShare.Name)
		if m != nil && slices.Min(m.Rounds) > lossFrom {
			return n
		}
	}
	return -1
}

// found is the median of a measurement, NaN if there is none.
func found(s *record.Scenario, subject string, at record.Conditions, quantity record.Quantity) float64 {
	value, _ := reading(subject, at, quantity)(s)
	return value
}
