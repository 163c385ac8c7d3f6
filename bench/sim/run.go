package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Run simulates a cluster.
func Run(c Config) (*Result, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("simulate %s: %w", c.Policy, err)
	}
	if c.Policy == OneQueue {
		c.Workers, c.Servers = c.Workers*c.Servers, 1
	}
	r := newCluster(&c)
	for range c.Warm {
		r.arrive()
	}
	r.watch(c.Count)
	for range c.Count {
		r.arrive()
	}
	return r.result(), nil
}

// cluster is a run under way.
type cluster struct {
	config  *Config
	rate    float64 // of arrivals
	weights []float64
	now     float64
	servers *servers
	policy  policy
	follows bool // whether the servers' numbers of requests are needed

	has     []int32 // how many requests each server has
	events  departures
	reports *reports

	// Separate sources, so that a policy that draws more does not change the arrivals.
	arrivals, services, choices *rand.Rand

	since   float64 // when watching began
	times   []float64
	total   int64 // of requests in the cluster
	area    float64
	most    mostHeld
	handled int
}

func newCluster(c *Config) *cluster {
	source := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(c.Seed, stream)) }
	r := &cluster{
		config: c, weights: c.weights(), has: make([]int32, c.Servers),
		rate:     c.Load * float64(c.Servers) * float64(max(c.Workers, 1)),
		arrivals: source(1), services: source(2), choices: source(3),
	}
	r.servers = newServers(c, r.weights)
	r.most.servers = []int32{int32(c.Servers)}
	row, _ := policyOf(c.Policy)
	r.follows = row.follows || c.Workers == 0
	r.reports = newReports(c.Interval, r.has)
	r.policy = row.make(r)
	return r
}

// arrive lets time pass until the next request, and places it.
func (r *cluster) arrive() {
	next := r.now + r.arrivals.ExpFloat64()/r.rate
	director := r.arrivals.IntN(r.config.Directors)
	service := r.config.Service.draw(r.services)
	if r.follows {
		r.pass(next)
	}
	r.now = next
	r.handled++
	server := r.policy.place(director)
	departs := r.servers.take(server, next, service)
	if r.times != nil {
		r.times = append(r.times, departs-next)
	}
	if r.follows {
		r.has[server]++
		r.total++
		r.policy.changed(server, 1)
		r.events.push(departure{departs, server})
		r.most.note(r.has[server])
	}
}

// pass handles what happens before the next request arrives.
func (r *cluster) pass(until float64) {
	for r.events.until(until) {
		first := r.events.pop()
		r.reports.before(first.at)
		r.elapse(first.at)
		r.has[first.server]--
		r.total--
		r.policy.changed(first.server, -1)
		r.most.leave(r.has[first.server])
		r.handled++
	}
	r.reports.before(until)
	r.elapse(until)
}

// elapse lets time pass in which nothing happens.
func (r *cluster) elapse(until float64) {
	if r.times != nil {
		passed := until - r.now
		r.area += passed * float64(r.total)
		r.most.elapse(passed)
	}
	r.now = until
}

// watch begins to count.
func (r *cluster) watch(count int) {
	r.times = make([]float64, 0, count)
	r.since = r.now
}

// result says what was seen.
func (r *cluster) result() *Result {
	sum := 0.0
	for _, t := range r.times {
		sum += t
	}
	passed := r.now - r.since
	result := &Result{Mean: sum / float64(len(r.times)), Events: r.handled, Rate: float64(len(r.times)) / passed}
	if r.follows {
		result.Held = r.area / passed
		result.Most = r.most.area / passed
	}
	slices.Sort(r.times)
	result.times = r.times
	return result
}
