package policies

import (
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
				if err := a.times(c, at, p50, p99, p999); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
