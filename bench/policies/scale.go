package policies

import (
	"fmt"

	"weir.io/weir/bench/sim"
	"weir.io/weir/lab/record"
)

var scaleNotes = []string{
	"load 0.8, exponential service, reports every service time",
	"`p2c` of 1000x100000 goes by reports alone: that a director places two requests on the same server between two reports hardly happens there",
	"1000x100000 is one run of 4,000,000 requests behind those that fill the queues, the others are as many runs as elsewhere",
	"`least-conn` is left out: a director that asks 100,000 servers for each request is nobody's plan, and `join shortest queue` is what it would come to",
}

// How many requests for each server come first and do not count, and how many count. At this load
// queues forget their initial state in about 90 service times; for p99.9, far out in the tail, that
// time has to pass several times. Policies that look at queues keep them short, and these forget
// much sooner.
const (
	scaleWarm        = 400
	scaleWarmLooking = 80
	scaleCount       = 40
)

// A cluster of this many servers is simulated once: it has as many requests as others in many
// rounds.
const scaleOnce = 100000

func askScale(a *asking) error {
	for _, size := range []struct{ directors, servers int }{{16, 16}, {100, 1000}, {1000, scaleOnce}} {
		if a.settings.Smoke && size.servers == scaleOnce {
			continue // building its ring alone takes half a second
		}
		at := record.Conditions{"directors x servers": fmt.Sprintf("%dx%d", size.directors, size.servers)}
		for _, policy := range []string{sim.Random, sim.Distributed, sim.Central, sim.P2C, sim.Shortest} {
			c := sim.Config{Policy: policy, Directors: size.directors, Servers: size.servers, Workers: 1, Service: sim.Exponential,
				Load: 0.8, Interval: 1, Warm: scaleWarm * size.servers, Count: max(scaleCount*size.servers, 400000)}
			if policy == sim.P2C || policy == sim.Shortest {
				c.Warm = scaleWarmLooking * size.servers
			}
			c.Warm = max(c.Warm, 30000)
			if err := a.once(size.servers == scaleOnce).times(c, at, p50, p99, p999); err != nil {
				return err
			}
		}
	}
	return nil
}

var weightsNotes = []string{
	"16 directors and 16 servers, of which half have weight 4, and are four times as fast as the others; exponential service, reports every service time",
	"a service time is that of a server of the mean speed",
}

func askWeights(a *asking) error {
	weights := make([]uint16, 16)
	for i := range weights {
		weights[i] = []uint16{1, 4}[i%2]
	}
	for _, load := range []float64{0.3, 0.5, 0.7, 0.8, 0.9} {
		for _, policy := range sim.Policies() {
			if policy == sim.OneQueue {
				continue // one queue is for servers of one speed
			}
			c := sim.Config{Policy: policy, Directors: 16, Servers: 16, Weights: weights, Workers: 1, Service: sim.Exponential, Load: load,
				Interval: 1, Second: 100, Warm: 30000, Count: 200000}
			if err := a.times(c, record.Conditions{"load": number(load)}, p99); err != nil {
				return err
			}
		}
	}
	return nil
}
