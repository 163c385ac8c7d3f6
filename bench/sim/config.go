package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Config is a cluster, its load, and how long it is watched.
type Config struct {
	Policy    string // the name of one of Policies
	Directors int    // where requests arrive, each with state of its own
	Servers   int
	// Weights are the servers' weights: a server with twice the weight is twice as fast; nil: all
	// are alike.
	Weights []uint16
	// Workers is how many requests a server serves at once; the others wait. 0: it serves all that
	// it has, like open connections.
	Workers int
	Service Service
	// Load is the share of the servers' time that requests take; without Workers, how many requests
	// a server has on average.
	Load float64
	// Interval is how often a server reports how many requests it has; 0: directors know the
	// current number.
	Interval float64
	// Second is how long a second is, in mean service times. Only P2CInGUE's knowledge of loads
	// depends on seconds. 0: a service time takes a second.
	Second float64
	Warm   int // requests that come first and do not count
	Count  int // requests that count
	Seed   uint64
}

// mostServers leaves room in a ring of the default size.
const mostServers = 160000

func (c *Config) validate() error {
	if _, found := policyOf(c.Policy); !found {
		return fmt.Errorf("there is no policy %q", c.Policy)
	}
	switch {
	case c.Directors < 1:
		return fmt.Errorf("%d directors: there must be one at least", c.Directors)
	case c.Servers < 2 && c.Policy != OneQueue || c.Servers < 1 || c.Servers > mostServers:
		return fmt.Errorf("%d servers: there must be 2 to %d", c.Servers, mostServers)
	case !c.Service.known():
		return fmt.Errorf("there is no distribution %q of service times", c.Service)
	case c.Weights != nil && len(c.Weights) != c.Servers:
		return fmt.Errorf("%d weights for %d servers", len(c.Weights), c.Servers)
	case c.Weights != nil && c.Policy == OneQueue:
		return errors.New("one queue is for servers that are alike")
	case !(c.Load > 0) || c.Workers > 0 && c.Load >= 1:
		return fmt.Errorf("load %v: queues would grow for ever, or stay empty", c.Load)
	case c.Workers < 0 || c.Workers == 0 && c.Policy == OneQueue:
		return fmt.Errorf("%d workers: nobody would wait in a queue", c.Workers)
	case !(c.Interval >= 0) || !(c.Second >= 0):
		return fmt.Errorf("interval %v, second %v: neither is a time", c.Interval, c.Second)
	case c.Warm < 0 || c.Count < 1:
		return fmt.Errorf("%d requests after %d: nothing would be measured", c.Count, c.Warm)
	}
	for i, weight := range c.Weights {
		if weight == 0 {
			return fmt.Errorf("server %d has no weight: leave it out", i)
		}
	}
	return nil
}

// weights returns the weight of each server.
func (c *Config) weights() []float64 {
	all := make([]float64, c.Servers)
	for i := range all {
		all[i] = 1
		if c.Weights != nil {
			all[i] = float64(c.Weights[i])
		}
	}
	return all
}

// Service is a distribution of service times, by its name.
type Service string

// The distributions. Each has mean 1.
const (
	Fixed       Service = "fixed"
	Exponential Service = "exponential"
	// Bimodal is nine short requests for each one that takes ten times as long.
	Bimodal Service = "bimodal"
)

// Services are all distributions.
var Services = []Service{Fixed, Exponential, Bimodal}

// Nine of ten requests take bimodalShort, one takes bimodalLong.
const (
	bimodalShort = 10.0 / 19
	bimodalLong  = 100.0 / 19
	bimodalPart  = 0.9
)

func (s Service) known() bool { return slices.Contains(Services, s) }

// draw returns a service time.
func (s Service) draw(random *rand.Rand) float64 {
	switch s {
	case Exponential:
		return random.ExpFloat64()
	case Bimodal:
		if random.Float64() < bimodalPart {
			return bimodalShort
		}
		return bimodalLong
	}
	return 1
}
