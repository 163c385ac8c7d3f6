package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"weir.io/weir/bench/bypass"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

var goodput = record.Quantity{Name: "goodput", Unit: "B/s", Better: record.Higher}

// The rate of every host's cable in each direction, several times less than the machine can carry.
const (
	linkRate       = 20_000_000 // bits per second
	linkHosts      = 3          // clients, and as many servers
	linkEach       = 16         // connections of each client at a time
	goodputSettle  = 500 * time.Millisecond
	goodputSamples = 6
	goodputRounds  = 5
)

// goodputSizes are bytes of requests.
var goodputSizes = []int{256, 1024, 4096, 65536}

var goodputNotes = []string{
	"goodput: bytes per second of requests that came back, from 3 clients with 16 connections each, to 3 servers. Every host's cable carries 20 Mbit/s each way (HTB), headers among it: the machine's cores are not what limits large requests, and 20 Mbit/s stand for the paper's 10 Gbit/s. Answers go directly to the client with all of these modes. 5 rounds, also if --rounds says more",
	"redirect takes turns (`round-robin`), so that each server has as many of the few connections; in the others the director's cable is the limit, wherever they go",
	"the paper's goodput grew to that of all three servers with redirect, and DSR's to that of the balancer (figure 10)",
}

// measureGoodput measures how much the director's cable matters.
func (s *session) measureGoodput(ctx context.Context) (err error) {
	lab, err := netlab.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	l, err := bypass.NewLinks(ctx, lab, linkHosts, linkRate)
	if err != nil {
		return fmt.Errorf("build the lab: %w", err)
	}
	sizes, settle, rounds := goodputSizes, goodputSettle, s.settings.Rounds
	if s.settings.Smoke {
		sizes, settle = []int{1024}, 0
	}
	s.settings.Rounds = min(rounds, goodputRounds)
	defer func() { s.settings.Rounds = rounds }()
	var steps []func(context.Context) error
	for _, at := range []record.Conditions{rr, crr} {
		for _, size := range sizes {
			for _, way := range bypass.LinkWays {
				load := bypass.Load{Connections: linkEach, Size: size, PerRequest: at["requests"] == crr["requests"],
					Settle: settle, Duration: goodputSamples * s.sample()}
				steps = append(steps, func(ctx context.Context) error {
					g, err := l.Goodput(ctx, way, load)
					if err != nil {
						return err
					}
					s.add(way, ofSize(at, size), goodput, float64(g.Bytes)/g.Elapsed.Seconds())
					return nil
				})
			}
		}
	}
	return s.inRounds(ctx, steps...)
}

func ofSize(at record.Conditions, size int) record.Conditions {
	return record.Conditions{"requests": at["requests"], "bytes": strconv.Itoa(size)}
}

// mostGoodput is the goodput of requests in open connections, of the size with the most, divided by
// what the director's cable carries.
func mostGoodput(s *record.Scenario) (float64, error) {
	most, problem := math.NaN(), error(nil)
	for _, size := range goodputSizes {
		value, err := reading(s, bypass.Handover, ofSize(rr, size), goodput)
		if err != nil {
			problem = err // a short run has one size
			continue
		}
		most = math.Max(value*8/linkRate, orLess(most))
	}
	if math.IsNaN(most) {
		return most, problem
	}
	return most, nil
}

// orLess is a value, or less than all others if it is missing.
func orLess(value float64) float64 {
	if math.IsNaN(value) {
		return math.Inf(-1)
	}
	return value
}
