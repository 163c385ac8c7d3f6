package policies

import (
	"weir.io/weir/bench/sim"
	"weir.io/weir/lab/record"
)

// Times are in mean service times. A bare number has no unit that could take a prefix.
var (
	p50  = record.Quantity{Name: "p50", Unit: "1", Better: record.Lower}
	p99  = record.Quantity{Name: "p99", Unit: "1", Better: record.Lower}
	p999 = record.Quantity{Name: "p99.9", Unit: "1", Better: record.Lower}
)

// smokeRequests is few: enough for some result.
const smokeRequests = 400

// simulate runs a cluster once per round, each with a seed of its own. In a round all
// policies and conditions have the same seed.
func (a *asking) simulate(c sim.Config, note func(*sim.Result)) error {
	if a.settings.Smoke {
		c.Warm, c.Count = smokeRequests, smokeRequests
	}
	for round := range a.settings.Rounds {
		if err := a.context.Err(); err != nil {
			return err
		}
		c.Seed = a.settings.Seed + uint64(round)
		result, err := sim.Run(c)
		if err != nil {
			return err
		}
		*a.count += result.Events
		note(result)
	}
	return nil
}

// once is the same scenario, in a single round if so is set.
func (a *asking) once(so bool) *asking {
	if so {
		a = &asking{context: a.context, settings: a.settings, into: a.into, count: a.count}
		a.settings.Rounds = 1
	}
	return a
}

// times records percentiles of request times.
func (a *asking) times(c sim.Config, at record.Conditions, quantities ...record.Quantity) error {
	shares := map[string]float64{p50.Name: 0.5, p99.Name: 0.99, p999.Name: 0.999}
	return a.simulate(c, func(r *sim.Result) {
		for _, q := range quantities {
			a.into.Add(c.Policy, at, q, r.Percentile(shares[q.Name]))
		}
	})
}

// asksServers says whether a policy uses servers' reports.
func asksServers(policy string) bool { return policy == sim.LeastConn || policy == sim.P2C }
