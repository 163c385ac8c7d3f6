package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/bench/edge"
	"weir.io/weir/lab/record"
)

var carried = record.Quantity{Name: "throughput", Unit: "B/s", Better: record.Higher}

// The rate of a director's cable, several times less than the machine can carry; and the
// number of samples in one measurement, because the limit holds for averages.
const (
	directorRate    = 50_000_000 // bits per second
	scaleoutSamples = 8
	scaleoutFlows   = 64
)

// fullCable is the share of its cable's limit that one director has to carry at least: the rest is
// headers, and what TCP leaves free. With less the ratio says nothing about directors.
const fullCable = 0.9

// gueGroup is the measured subject.
const gueGroup = "gue"

var scaleoutNotes = []string{
	"directors behind an FRR router and the kernel's ECMP, 4 backends with agents, `gue`; 64 TCP connections send to the VIP all that gets through. A director's cable carries 50 Mbit/s of that to it (HTB), and 100 ms of it wait; BGP and BFD have a way of their own beside it",
	"throughput: payload that came to the backends per second. Directors are told to end, and started again, so that there are 4, 3, 2 and 1 in each round; connections are new each time",
	"responsiveness: the same once more while the number of directors changes, at random and every 4 s: what came in each half second, beside what the cables of the directors carry that there are. The connections stay; the router moves them to other directors, and the agents send what comes to the wrong backend on",
	"the paper's throughput grew with the number of load balancers up to four, where the client's CPU was the limit, and followed it when it was changed",
	"the cables are the limit, on purpose: that several directors carry more, and evenly, is what is shown, not what one carries",
}

func measureScaleout(ctx context.Context, s *session) error {
	options := edge.Options{Directors: 4, Backends: 4, Drain: 500 * time.Millisecond, Rate: directorRate}
	if s.settings.Smoke {
		options.Directors, options.Backends = 2, 2
	}
	e, err := inEdge(ctx, s, options)
	if err != nil {
		return err
	}
	if err := s.inRounds(ctx, func(ctx context.Context) error { return s.scale(ctx, e) }); err != nil {
		return err
	}
	return s.respond(ctx, e)
}

// scale measures all numbers of directors once.
func (s *session) scale(ctx context.Context, e *edge.Edge) error {
	for n := len(e.Directors); n > 0; n-- {
		if n < len(e.Directors) {
			if _, err := e.Stop(ctx, e.Directors[n]); err != nil {
				return err
			}
		}
		rate, err := e.Load(ctx, scaleoutFlows, scaleoutSamples*s.sample())
		if err != nil {
			return fmt.Errorf("%d directors: %w", n, err)
		}
		s.add(gueGroup, directorsAt(n), carried, rate)
	}
	for _, d := range e.Directors[1:] {
		if err := e.Begin(ctx, d); err != nil {
			return err
		}
	}
	return e.Settled(ctx)
}

func directorsAt(n int) record.Conditions { return record.Conditions{"directors": strconv.Itoa(n)} }

// scaleoutRatio is what 4 directors carry divided by what 1 carries, which has to fill its cable.
func scaleoutRatio(s *record.Scenario) (float64, error) {
	value, err := ratioOf(subject{gueGroup, directorsAt(4)}, subject{gueGroup, directorsAt(1)}, carried)(s)
	if err != nil {
		return value, err
	}
	alone := slices.Min(s.Find(gueGroup, directorsAt(1), carried.Name).Rounds) * 8 / directorRate
	if alone < fullCable {
		return value, fmt.Errorf("1 director carried %.2f of its cable's limit in some round", alone)
	}
	return value, nil
}

// responded is what backends received at a time, while the number of directors changed.
var responded = record.Quantity{Name: "responsiveness", Unit: "B/s", Better: record.Neither}

// cables is the subject for what the directors' cables can carry.
const cables = "cables"

// How the number of directors changes, and how often the received bytes are read.
const (
	responseChanges = 7
	responseEvery   = 4 * time.Second
	responseLook    = 500 * time.Millisecond
)

// respond changes the number of directors at random, and records what backends received meanwhile.
func (s *session) respond(ctx context.Context, e *edge.Edge) (err error) {
	changes := responseChanges
	if s.settings.Smoke {
		changes = 1
	}
	stop, err := e.Flood(ctx, scaleoutFlows)
	if err != nil {
		return err
	}
	defer stop()
	var running atomic.Int64
	running.Store(int64(e.RunningDirectors()))
	looking, blind := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() { s.watch(looking, e, &running) })
	defer looks.Wait()
	defer blind()
	turn := time.NewTicker(responseEvery)
	defer turn.Stop()
	random := rand.New(rand.NewPCG(3, 4))
	for i := range changes + 1 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-turn.C: // time for a change
		}
		if i == changes {
			return nil
		}
		if err := resize(ctx, e, 1+random.IntN(len(e.Directors)-1), &running); err != nil {
			return fmt.Errorf("change the number of directors: %w", err)
		}
	}
	return nil
}

// resize changes the number of directors: the offset chooses one of the other numbers. All are told
// at once.
func resize(ctx context.Context, e *edge.Edge, offset int, running *atomic.Int64) error {
	now := e.RunningDirectors()
	wanted := 1 + (now-1+offset)%len(e.Directors)
	running.Store(int64(wanted))
	var told sync.WaitGroup
	problems := make([]error, len(e.Directors))
	for i, d := range e.Directors {
		switch {
		case i < wanted && !d.Running:
			told.Go(func() { problems[i] = e.Begin(ctx, d) })
		case i >= wanted && d.Running:
			told.Go(func() { problems[i] = e.End(ctx, d) })
		}
	}
	told.Wait()
	return errors.Join(problems...)
}

// watch records what backends receive, until the context ends.
func (s *session) watch(ctx context.Context, e *edge.Edge, running *atomic.Int64) {
	look := time.NewTicker(responseLook)
	defer look.Stop()
	began := time.Now()
	before, at := e.Got(), began
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		got, now := e.Got(), time.Now()
		second := record.Conditions{"second": strconv.FormatFloat(float64(n)*responseLook.Seconds(), 'f', -1, 64)}
		s.add(gueGroup, second, responded, float64(got-before)/now.Sub(at).Seconds())
		s.add(cables, second, responded, float64(running.Load())*directorRate/8)
		before, at = got, now
	}
}
