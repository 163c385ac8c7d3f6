package policies

import (
	"strconv"

	"weir.io/weir/bench/sim"
	"weir.io/weir/lab/record"
)

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
