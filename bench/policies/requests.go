package policies

import (
	"fmt"
	"strconv"

	"weir.io/weir/bench/sim"
	"weir.io/weir/lab/record"
)

var latencyNotes = []string{
	"16 directors and 16 servers, each of which serves one request at a time; servers report every service time (every 10 ms, where a request takes 10 ms)",
	"p50, p99, p99.9: of the time from a request's arrival until it is answered, in mean service times, so 1 is the least that a fixed request can take",
	"fixed: all requests take the same; exponential: as in textbooks; bimodal: nine short ones to one that takes ten times as long",
	"one queue is no balancer's policy: servers take requests from one queue when they are free, and nobody who places requests when they arrive does better",
}

var latencyLoads = []float64{0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95}

func askLatency(a *asking) error {
	for _, service := range sim.Services {
		for _, load := range latencyLoads {
			for _, policy := range sim.Policies() {
				c := sim.Config{Policy: policy, Directors: 16, Servers: 16, Workers: 1, Service: service, Load: load,
					Interval: 1, Second: 100, Warm: 30000, Count: 200000}
				at := record.Conditions{"service": string(service), "load": number(load)}
				if err := a.times(c, at, P50, P99, P999); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

var directorsNotes = []string{
	"64 servers at load 0.8; servers report every service time, and each director knows besides what it has placed itself since",
	"`round-robin central` is what directors would do that share their turns; `random` and it do not depend on the number of directors, and are simulated with one",
}

func askDirectors(a *asking) error {
	for _, service := range []sim.Service{sim.Fixed, sim.Exponential} {
		c := sim.Config{Directors: 1, Servers: 64, Workers: 1, Service: service, Load: 0.8, Interval: 1, Warm: 60000, Count: 200000}
		at := record.Conditions{"service": string(service)}
		for _, c.Policy = range []string{sim.Random, sim.Central} {
			if err := a.times(c, at, P99); err != nil {
				return err
			}
		}
		for _, c.Directors = range []int{1, 4, 16, 64, 256, 1024} {
			at := record.Conditions{"service": string(service), "directors": strconv.Itoa(c.Directors)}
			for _, c.Policy = range []string{sim.Distributed, sim.LeastConn, sim.P2C} {
				if err := a.times(c, at, P99); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

var stalenessNotes = []string{
	"16 directors and 16 servers at load 0.8; interval: between two reports of a server, in mean service times. Where requests take 1 ms and agents report every 10 ms it is 10",
	"each director knows besides what it has placed itself since the last report, but not what the others have",
	"the policies that ask nobody are the same at every interval",
}

func askStaleness(a *asking) error {
	for _, service := range []sim.Service{sim.Fixed, sim.Exponential} {
		c := sim.Config{Directors: 16, Servers: 16, Workers: 1, Service: service, Load: 0.8, Warm: 30000, Count: 200000}
		at := record.Conditions{"service": string(service)}
		for _, c.Policy = range []string{sim.Random, sim.Distributed, sim.Central} {
			if err := a.times(c, at, P99); err != nil {
				return err
			}
		}
		for _, c.Interval = range []float64{0.1, 0.3, 1, 3, 10, 30, 100} {
			at := record.Conditions{"service": string(service), "interval": number(c.Interval)}
			for _, c.Policy = range []string{sim.LeastConn, sim.P2C} {
				if err := a.times(c, at, P99); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

var openNotes = []string{
	"64 servers with 100 open connections each on average, whose lifetimes are exponential; servers report ten times per second",
	"most: how many connections the server has that has the most, to the mean of all, over time: 1 would be even",
	"`p2c in gue` is the policy p2c of today's weir: it knows what each director has opened itself, halved every 34.4 s, and chooses between a slot's two backends",
}

var mostOpen = record.Quantity{Name: "most", Unit: "1", Better: record.Lower}

func askOpen(a *asking) error {
	const mean = 100
	for _, directors := range []int{1, 16} {
		for _, lifetime := range []float64{1, 10, 100, 1000} { // seconds
			at := record.Conditions{"directors": strconv.Itoa(directors), "lifetime": number(lifetime)}
			for _, policy := range []string{sim.Random, sim.Distributed, sim.Central, sim.LeastConn, sim.P2C, sim.P2CInGUE} {
				c := sim.Config{Policy: policy, Directors: directors, Servers: 64, Service: sim.Exponential, Load: mean,
					Second: 1 / lifetime, Warm: 64 * mean * 6, Count: 64 * mean * 12}
				if asksServers(policy) {
					c.Interval = 0.1 / lifetime
				}
				if err := a.simulate(c, func(r *sim.Result) { a.into.Add(policy, at, mostOpen, r.Most*64/r.Held) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

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
			if err := a.once(size.servers == scaleOnce).times(c, at, P50, P99, P999); err != nil {
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
			if err := a.times(c, record.Conditions{"load": number(load)}, P99); err != nil {
				return err
			}
		}
	}
	return nil
}
