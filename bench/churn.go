package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// The effects of swapping the ring besides throughput.
var (
	lostPackets  = record.Quantity{Name: "lost", Unit: "packet", Better: record.Lower}
	misdirected  = record.Quantity{Name: "misdirected", Unit: "packet", Better: record.Lower}
	swapsCounted = record.Quantity{Name: "swaps", Unit: "1/s", Better: record.Neither}
)

const swapInterval = 100 * time.Millisecond

// One measurement takes the time of that many samples, and at least as long as it takes to see a
// few swaps.
const (
	churnSamples = 4
	churnLeast   = 5 * swapInterval
)

var churnNotes = []string{
	"l2dsr, 64-byte TCP packets of 1,000 flows, 1 VIP. Ten times per second the director's file is replaced by one that has other backends: of 255, a third goes and another third comes, then back. weir run notices, and sets the new ring, with `coalesce` at 1 ms. Where packets have not followed yet when the next replacement is due, it waits for them",
	"misdirected: packets that came to a backend which their flow belongs to neither before nor after; one packet of 64 is looked at, of each backend",
	"lost: on one core the source waits for the balancer and nothing is lost without swaps, so what is lost there is lost by them. On two cores the source is faster than the balancer, and more is lost before it",
	"swaps: those that packets were seen to follow, per second from the first to the last of them",
}

func measureChurn(ctx context.Context, s *session) error {
	way := traffic.Traffic{Protocol: model.TCP, Flows: fewFlows, VIPs: oneVIP.vips, Frames: []int{64}}
	var steps []func(context.Context) error
	for _, cores := range []int{1, 2} {
		t, err := track.Start(ctx, track.Options{Subject: l2dsr, Backends: oneVIP.backends, Traffic: way, TwoCores: cores == 2, Swaps: true})
		if err != nil {
			return err
		}
		s.atEnd(t.Close)
		stream, err := t.Stream(way)
		if err != nil {
			return err
		}
		steps = append(steps,
			func(ctx context.Context) error { return s.churn(ctx, t, stream, 0) },
			func(ctx context.Context) error { return s.churnWithSwaps(ctx, t, stream) })
	}
	return s.inRounds(ctx, steps...)
}

// churnWithSwaps measures again if the director has swapped nothing in a short sample, because the
// machine does other work.
func (s *session) churnWithSwaps(ctx context.Context, t *track.Track, stream *track.Stream) error {
	const tries = 4
	for left := tries; ; left-- {
		if err := s.churn(ctx, t, stream, swapInterval); left == 1 || !errors.Is(err, track.ErrNotSwapped) {
			return err
		}
	}
}

// churn measures the stream once, with swaps at that interval or, if it is 0, with
// none.
func (s *session) churn(ctx context.Context, t *track.Track, stream *track.Stream, interval time.Duration) error {
	at := churnAt(t.TwoCores, interval)
	swapping := func(context.Context) (track.Swaps, error) { return track.Swaps{}, nil }
	if interval > 0 {
		swapping = func(ctx context.Context) (track.Swaps, error) { return t.KeepSwapping(ctx, interval) }
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var swaps track.Swaps
	ended := make(chan error, 1)
	go func() {
		var err error
		swaps, err = swapping(ctx)
		ended <- err
	}()
	sample, err := stream.Measure(max(churnSamples*s.sample(), churnLeast))
	stop()
	err = errors.Join(err, <-ended)
	if err == nil && interval > 0 && swaps.Seen == 0 {
		err = track.ErrNotSwapped
	}
	var wrong *traffic.WrongError
	if errors.As(err, &wrong) {
		s.add(l2dsr.Name, at, misdirected, float64(wrong.Total()))
	}
	if err != nil {
		return fmt.Errorf("%v: %w", at, err)
	}
	s.add(l2dsr.Name, at, record.Throughput, sample.Rate)
	s.add(l2dsr.Name, at, misdirected, 0)
	s.add(l2dsr.Name, at, lostPackets, float64(sample.Sent-sample.Received))
	if interval > 0 {
		s.add(l2dsr.Name, at, swapsCounted, swaps.PerSecond())
	}
	return nil
}

func churnAt(twoCores bool, interval time.Duration) record.Conditions {
	at := record.Conditions{"cores": "1", "swaps": "none"}
	if twoCores {
		at["cores"] = "2"
	}
	if interval > 0 {
		at["swaps"] = strconv.Itoa(int(time.Second/interval)) + "/s"
	}
	return at
}

// withSwaps is the largest of the rounds with swaps, on one core or on two.
func withSwaps(quantity record.Quantity, cores ...bool) value {
	var all []value
	for _, two := range cores {
		all = append(all, quantileOf(subject{l2dsr.Name, churnAt(two, swapInterval)}, quantity, 1))
	}
	return largest(all...)
}
