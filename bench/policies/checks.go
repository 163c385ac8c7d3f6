package policies

import (
	"weir.io/weir/bench/sim"
	"weir.io/weir/lab/record"
)

// check is an expectation of the simulation: a ratio, round by round.
type check struct {
	name, what string
	scenario   string
	quantity   record.Quantity
	of, to     string // policies
	at         record.Conditions
	target     float64
}

var checks = []check{
	{"sim_p99_round_robin_vs_random", "p99 of central round-robin to that of random, fixed service, load 0.8", "latency", p99,
		sim.Central, sim.Random, record.Conditions{"service": "fixed", "load": "0.8"}, 0.5},
	{"sim_p99_distributed_vs_random", "p99 of 16 directors' own round-robin to that of random, fixed service, load 0.8", "latency", p99,
		sim.Distributed, sim.Random, record.Conditions{"service": "fixed", "load": "0.8"}, 1},
	{"sim_p99_p2c_vs_random", "p99 of p2c to that of random, exponential service, load 0.8", "latency", p99,
		sim.P2C, sim.Random, record.Conditions{"service": "exponential", "load": "0.8"}, 0.5},
}

// Judge compares the results with the expectations.
func Judge(r *record.Record) []record.Check {
	all := []record.Check{}
	for _, c := range checks {
		s := r.Scenario(c.scenario)
		if s == nil {
			continue
		}
		ratio := record.Median(record.Ratios(s.Find(c.of, c.at, c.quantity.Name), s.Find(c.to, c.at, c.quantity.Name)))
		all = append(all, record.Check{Name: c.name, What: c.what, Value: record.Number(ratio), Unit: "1", Relation: "<=", Target: c.target,
			OK: ratio <= c.target, Scenario: c.scenario, Quantity: c.quantity.Name})
	}
	return all
}
