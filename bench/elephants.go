package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// Measurements of scenario steering in which a NIC's rules change while packets come.
const (
	elephants = "elephants"
	disturbed = "disturbed"
)

var (
	elephantsShare = record.Quantity{Name: "share", Unit: "1", Better: record.Higher}
	largestShare   = record.Quantity{Name: "largest", Unit: "1", Better: record.Neither}
	byRule         = record.Quantity{Name: "by-rule", Unit: "1", Better: record.Neither}
	rulesChanged   = record.Quantity{Name: "rules-changed", Unit: "1/s", Better: record.Neither}
)

// zipf is the exponent of the flows' sizes.
const zipf = 1.1

// skew is traffic whose largest flows get rules.
type skew struct {
	flows, rules int
	length       time.Duration // of sending, before the rules are looked at
}

var (
	wholeSkew   = skew{flows: manyFlows, rules: 2000, length: 15 * time.Second}
	smokeSkew   = skew{flows: 10_000, rules: 50, length: time.Second}
	elephantsAt = wholeSkew.at()
)

func (k skew) at() record.Conditions {
	at := flowsAt(k.flows)
	at["rules"] = strconv.Itoa(k.rules)
	return at
}

// measureElephants measures which share of the packets the flows with rules have.
func (s *session) measureElephants(ctx context.Context) error {
	k := wholeSkew
	if s.settings.Smoke {
		k = smokeSkew
	}
	way := traffic.Traffic{Protocol: model.TCP, Flows: k.flows, VIPs: 1, Frames: []int{64}, Zipf: zipf}
	t, err := track.Start(ctx, track.Options{Subject: l2dsr, Backends: oneVIP.backends, Traffic: way, Steered: k.rules, Routed: true})
	if err != nil {
		return err
	}
	s.atEnd(t.Close)
	packets := make([]float64, k.flows) // shares of all
	order := way.Order()
	for _, flow := range order {
		packets[flow] += 1 / float64(len(order))
	}
	most := 0.0
	for _, share := range slices.SortedFunc(slices.Values(packets), func(a, b float64) int { return cmp.Compare(b, a) })[:k.rules] {
		most += share
	}
	return s.inRounds(ctx, func(context.Context) error {
		sample, err := t.Measure(k.length)
		if err != nil {
			return err
		}
		flows, err := t.Card().Flows()
		if err != nil {
			return err
		}
		have := 0.0
		for _, f := range flows {
			if n := traffic.Number(f.Source); n >= 0 && n < k.flows {
				have += packets[n]
			}
		}
		s.add(elephants, k.at(), elephantsShare, have/most)
		s.add(elephants, k.at(), largestShare, most)
		s.add(elephants, k.at(), record.Throughput, sample.Rate)
		return nil
	})
}

// While packets are looked at, so many rules change, and the ring once in that time.
const (
	rulesPerSecond = 1000
	swapWithRules  = time.Second
)

var disturbedAt = record.Conditions{"rules": strconv.Itoa(rulesPerSecond) + "/s", "swaps": "1/s"}

// measureDisturbed measures whether packets come to a wrong backend while rules and backends change.
func (s *session) measureDisturbed(ctx context.Context) error {
	length := 20 * time.Second
	if s.settings.Smoke {
		length = 3 * time.Second
	}
	// There are fewer rules than flows, so the director changes rules, too.
	way := traffic.Traffic{Protocol: model.TCP, Flows: 4 * fewFlows, VIPs: 1, Frames: []int{64}}
	t, err := track.Start(ctx, track.Options{Subject: l2dsr, Backends: oneVIP.backends, Traffic: way, Steered: 2 * fewFlows, Routed: true, Swaps: true})
	if err != nil {
		return err
	}
	s.atEnd(t.Close)
	round := uint64(0)
	return s.inRounds(ctx, func(ctx context.Context) error {
		round++
		return s.disturb(ctx, t, length, round)
	})
}

func (s *session) disturb(ctx context.Context, t *track.Track, length time.Duration, seed uint64) error {
	before, err := t.ByRule(ctx)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var swaps track.Swaps
	var changed int
	ended := make(chan error, 2)
	began := time.Now()
	go func() {
		var err error
		swaps, err = t.KeepSwapping(ctx, swapWithRules)
		ended <- err
	}()
	go func() {
		var err error
		changed, err = t.Card().Disturb(ctx, rulesPerSecond, track.RoutedQueues, seed)
		ended <- err
	}()
	sample, err := t.Measure(length)
	took := time.Since(began)
	after, asked := t.ByRule(ctx)
	stop()
	err = errors.Join(err, asked)
	err = errors.Join(err, <-ended, <-ended)
	if err == nil && (swaps.Seen == 0 || changed == 0 || after == before) {
		err = fmt.Errorf("%d rules changed, %d swaps were seen, and %d packets went by rules", changed, swaps.Seen, after-before)
	}
	var wrong *traffic.WrongError
	if errors.As(err, &wrong) {
		s.add(disturbed, disturbedAt, misdirected, float64(wrong.Total()))
	}
	if err != nil {
		return fmt.Errorf("%v: %w", disturbedAt, err)
	}
	s.add(disturbed, disturbedAt, misdirected, 0)
	s.add(disturbed, disturbedAt, rulesChanged, float64(changed)/took.Seconds())
	s.add(disturbed, disturbedAt, byRule, float64(after-before)/float64(sample.Received))
	s.add(disturbed, disturbedAt, swapsCounted, swaps.PerSecond())
	s.add(disturbed, disturbedAt, record.Throughput, sample.Rate)
	return nil
}
