package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/bench/edge"
	"weir.io/weir/lab/record"
)

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
