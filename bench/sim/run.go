// Package sim simulates by discrete events how the policy that places requests on servers affects
// their times: for clusters that no lab has room for, and for policies that weir does not have.
//
// The model is that of queueing theory; tests compare it with the exact results. Requests arrive as
// a Poisson process, each at one of the directors. The director's policy places it at once and for
// good on one server, which serves its requests in order of arrival. Time is in mean service times
// of a server of mean weight. The model leaves out the cost of forwarding, and networks: a report
// is only as old as its interval makes it.
//
// A run is a function of its configuration and seed. With the same seed all policies see the same
// arrivals and the same service times, which makes ratios between them less noisy than the times
// themselves.
package sim

import (
	"container/heap"
	"fmt"
	"math"
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
		heap.Push(&r.events, departure{departs, server})
		r.most.note(r.has[server])
	}
}

// pass handles what happens before the next request arrives.
func (r *cluster) pass(until float64) {
	for r.events.until(until) {
		first := heap.Pop(&r.events).(departure)
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

// departure is when a request leaves its server.
type departure struct {
	at     float64
	server int32
}

// departures is the queue of events, a heap.
type departures []departure

func (q departures) Len() int           { return len(q) }
func (q departures) Less(i, j int) bool { return q[i].at < q[j].at }
func (q departures) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *departures) Push(d any)        { *q = append(*q, d.(departure)) }

// Pop removes the last event.
func (q *departures) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// until reports whether the first event is due.
func (q departures) until(now float64) bool { return len(q) > 0 && q[0].at <= now }

// reports are what servers have reported: how many requests they have. Each reports every interval,
// one after the other, so that the oldest report is an interval old, and reports are half an
// interval old on average.
type reports struct {
	interval float64
	has      []int32  // now
	told     []int32  // as last reported
	number   []uint32 // how many reports each server has sent
	next     int      // the server that reports next
	round    float64  // how often all have reported
	due      float64
}

func newReports(interval float64, has []int32) *reports {
	r := &reports{interval: interval, has: has, told: has, number: make([]uint32, len(has)), due: math.Inf(1)}
	if interval > 0 {
		r.told, r.due = make([]int32, len(has)), 0
	}
	return r
}

// before makes those servers report whose time comes before this one.
func (r *reports) before(now float64) {
	for r.due <= now {
		r.told[r.next] = r.has[r.next]
		r.number[r.next]++
		if r.next++; r.next == len(r.has) {
			r.next = 0
			r.round++
		}
		r.due = (r.round + float64(r.next)/float64(len(r.has))) * r.interval
	}
}

// Result is what became of the requests that count. Times are from a request's arrival
// until it departs.
type Result struct {
	Mean   float64
	Rate   float64 // of arrivals, as measured
	Held   float64 // how many requests the cluster had, over time; 0 if it was not followed
	Most   float64 // how many the fullest server had, over time; likewise
	Events int     // arrivals and departures that were simulated

	times []float64 // sorted
}

// Percentile returns the time that this share of the requests, 0 to 1, did not exceed.
func (r *Result) Percentile(share float64) float64 {
	at := int(share * float64(len(r.times)))
	return r.times[min(at, len(r.times)-1)]
}

// mostHeld follows how many requests the fullest server has.
type mostHeld struct {
	servers []int32 // how many servers have each number of requests
	most    int32
	area    float64
}

// note notes that a server has one request more: now it has this many.
func (m *mostHeld) note(has int32) {
	for int(has) >= len(m.servers) {
		m.servers = append(m.servers, 0)
	}
	m.servers[has-1]--
	m.servers[has]++
	m.most = max(m.most, has)
}

// leave notes that a server has one request less: now it has this many.
func (m *mostHeld) leave(has int32) {
	m.servers[has+1]--
	m.servers[has]++
	if has+1 == m.most && m.servers[m.most] == 0 {
		m.most = has
	}
}

func (m *mostHeld) elapse(passed float64) { m.area += passed * float64(m.most) }

// servers are the servers, each with its workers and its queue. Waiting requests are not remembered
// one by one: a request's departure is known when it arrives, because the earlier ones are known,
// and no request overtakes another.
type servers struct {
	workers int
	free    []float64 // when each worker is, those of a server side by side
	speed   []float64 // of each server's workers
}

func newServers(c *Config, weights []float64) *servers {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	s := &servers{workers: c.Workers, free: make([]float64, c.Servers*c.Workers), speed: make([]float64, c.Servers)}
	for i, w := range weights {
		s.speed[i] = w * float64(len(weights)) / sum
	}
	return s
}

// take returns when a request departs that arrives now and needs that much service.
func (s *servers) take(server int32, now, service float64) float64 {
	if s.workers == 0 {
		return now + service
	}
	free := s.free[int(server)*s.workers : (int(server)+1)*s.workers]
	first := slices.Index(free, slices.Min(free))
	free[first] = max(now, free[first]) + service/s.speed[server]
	return free[first]
}
