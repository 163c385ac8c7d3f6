package policies

import (
	"strconv"

	"weir.io/weir/bench/sim"
	"weir.io/weir/lab/record"
)

var directorsNotes = []string{
	"64 servers at load 0.8; servers report every service time, and each director knows besides what it has placed itself since",
	"`round-robin central` is what directors would do that share their turns; `random` and it do not depend on the number of directors, and are simulated with one",
}

func askDirectors(a *asking) error {
	for _, service := range []sim.Service{sim.Fixed, sim.Exponential} {
		c := sim.Config{Directors: 1, Servers: 64, Workers: 1, Service: service, Load: 0.8, Interval: 1, Warm: 60000, Count: 200000}
		at := record.Conditions{"service": string(service)}
		for _, c.Policy = range []string{sim.Random, sim.Central} {
			if err := a.times(c, at, p99); err != nil {
				return err
			}
		}
		for _, c.Directors = range []int{1, 4, 16, 64, 256, 1024} {
			at := record.Conditions{"service": string(service), "directors": strconv.Itoa(c.Directors)}
			for _, c.Policy = range []string{sim.Distributed, sim.LeastConn, sim.P2C} {
				if err := a.times(c, at, p99); err != nil {
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
			if err := a.times(c, at, p99); err != nil {
				return err
			}
		}
		for _, c.Interval = range []float64{0.1, 0.3, 1, 3, 10, 30, 100} {
			at := record.Conditions{"service": string(service), "interval": number(c.Interval)}
			for _, c.Policy = range []string{sim.LeastConn, sim.P2C} {
				if err := a.times(c, at, p99); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
