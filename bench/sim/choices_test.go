package sim

import (
	"math"
	"testing"
)

// With many servers two choices make the mean time the sum of load^(2^i - 2) over i from
// 1: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE
// Transactions on Parallel and Distributed Systems 12 (10), 2001, theorem 2, which is
// exact for infinitely many. His table 1 shows 1 % more than that for 100 servers.
func TestTwoChoicesAreMitzenmachers(t *testing.T) {
	for _, load := range []float64{0.5, 0.9} {
		truth := 0.0
		for i := 1; i < 10; i++ {
			truth += math.Pow(load, math.Pow(2, float64(i))-2)
		}
		c := Config{Policy: P2C, Directors: 1, Servers: 2000, Workers: 1, Service: Exponential, Load: load, Warm: 60000, Count: 40000}
		agrees(t, "two choices", c, meanTime, truth)
	}
}

// joined is the mean time with two servers when each request joins the shorter queue, from the
// balance of all states with fewer than that many requests in a queue.
func joined(load float64) float64 {
	const most = 60
	var p, next [most][most]float64 // by the number of requests of each server
	p[0][0] = 1
	// The chain's steps take an exponential time each: arrivals at rate 2 load, departures at rate
	// 1 from each server.
	rate := 2*load + 2
	for range 6000 {
		next = [most][most]float64{}
		for a := range most {
			for b := range most {
				here := p[a][b]
				if here == 0 {
					continue
				}
				first := 0.5
				if a != b {
					first = 0
					if a < b {
						first = 1
					}
				}
				next[min(a+1, most-1)][b] += here * 2 * load / rate * first
				next[a][min(b+1, most-1)] += here * 2 * load / rate * (1 - first)
				next[max(a-1, 0)][b] += here / rate
				next[a][max(b-1, 0)] += here / rate
			}
		}
		p = next
	}
	held := 0.0
	for a := range most {
		for b := range most {
			held += float64(a+b) * p[a][b]
		}
	}
	return held / (2 * load) // Little's law
}

// With two servers, the shortest queue, least-conn that knows everything, and two choices are
// equal, and equal to the chain of their states.
func TestShortestOfTwoQueues(t *testing.T) {
	const load = 0.7
	truth := joined(load)
	for _, policy := range []string{Shortest, LeastConn, P2C} {
		c := Config{Policy: policy, Directors: 3, Servers: 2, Workers: 1, Service: Exponential, Load: load, Warm: 2000, Count: 30000}
		agrees(t, policy, c, meanTime, truth)
	}
}

// The number of requests in the cluster is the rate of arrivals times their time, whatever the
// policy: Little's law. Both sides are measured, so they differ only by what is cut off at the
// ends.
func TestLittlesLaw(t *testing.T) {
	for _, policy := range []string{LeastConn, P2C, Shortest} {
		c := Config{Policy: policy, Directors: 4, Servers: 10, Workers: 2, Service: Bimodal, Load: 0.8, Interval: 2, Warm: 5000, Count: 100000, Seed: 1,
			Weights: []uint16{1, 1, 1, 1, 1, 2, 2, 2, 2, 2}}
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if off := r.Rate*r.Mean/r.Held - 1; math.Abs(off) > 0.005 {
			t.Errorf("%s: %.3f arrive in a unit of time and stay %.3f, but %.3f are there", policy, r.Rate, r.Mean, r.Held)
		}
	}
}

// Reports that never change make two choices random; the more often they come, the less time
// requests take.
func TestStaleReports(t *testing.T) {
	c := Config{Policy: P2C, Directors: 50000, Servers: 100, Workers: 1, Service: Exponential, Load: 0.7, Warm: 10000, Count: 25000}
	c.Interval = 1e9 // and 5,000,000 estimates are too many, so no director knows what it placed itself
	agrees(t, "without news", c, meanTime, 1/(1-0.7))
	before := 0.0
	for _, interval := range []float64{0, 1, 5} {
		c.Interval = interval
		mean, half := estimated(t, c, meanTime)
		if mean-half <= before {
			t.Errorf("with reports every %v requests take %.3f ± %.3f, and with fresher ones up to %.3f", interval, mean, half, before)
		}
		before = mean + half
	}
}
