package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"weir.io/weir/bench/edge"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

// Delays after a change, and what became of requests.
var (
	routeDelay   = record.Quantity{Name: "route", Unit: "ms", Better: record.Lower}
	trafficDelay = record.Quantity{Name: "traffic", Unit: "ms", Better: record.Lower}
	startDelay   = record.Quantity{Name: "start", Unit: "ms", Better: record.Lower}
	quietDelay   = record.Quantity{Name: "last-packet", Unit: "ms", Better: record.Lower}
	failed       = record.Quantity{Name: "failed", Unit: "request", Better: record.Lower}
	slow         = record.Quantity{Name: "late", Unit: "request", Better: record.Lower}
	made         = record.Quantity{Name: "requests", Unit: "request", Better: record.Neither}
)

// The kinds of changes.
const (
	directorStops, directorStarts = "director-stop", "director-start"
	backendGoes, backendComes     = "backend-remove", "backend-add"
	hostLost, hostLostHold        = "host-loss-bfd", "host-loss-hold-time"
	processLost                   = "process-loss"
	backendDies                   = "backend-death"
	cleanChanges                  = "clean"
)

// How many changes of each kind a round has: 200 clean changes in five rounds.
const (
	cleanPerRound = 40
	lossPerRound  = 2
	deathPerRound = 4
)

var convergenceNotes = []string{
	"an FRR router with the kernel's ECMP, 4 directors that speak BGP (hold time 3 s) and BFD (3 x 50 ms) with it, and 4 backends with agents, `gue`. All the while a client makes 500 requests per second, over a connection each",
	"the directors are a group that shares its services and their logs in an etcd of one member; `coalesce` is the default, 50 ms, `notice` is 20 ms instead of 5 s, which is for directors that are behind, and `drain` of the service 1 s",
	"clean changes come at random: a director is told to end (`--grace-period 500ms`) or started, a backend drains, and is taken out of the service, or is put into it. At least one of each stays. The services come by one director's API",
	"route: from the change until the router's kernel sends to the directors that there are. traffic: until the last connection has gone where it should not, or the first where it should, by every director; after a loss, until the last request began that met it (its connection's first packet had to be sent again)",
	"backend-add ends with the first connection that the last director sends there, which comes some 70 ms after it could, on average: 500 requests per second are 31 for each director and backend",
	"director-start counts from the moment in which the director forwards; what comes before, a process that starts, a program that the kernel checks and the first checks of the backends, is `start`",
	"the paper's router followed most changes of the number of load balancers within 6 s and all within 10 s, with a change each minute for 20 hours",
	"director-stop takes a router of FRR 60 ms: bgpd lets changes wait for 50 ms, and zebra for 10",
	"host-loss: the host's cable is pulled, with BFD and without. process-loss: `weir run` is killed with -9, and started again after a second",
	"backend-death: the host's cable is pulled; last-packet: until a director has sent it a client's packet for the last time. Checks: `tcp`, every 250 ms, with a timeout of 200 ms, `fall: 2`",
	"all of it shares the machine's cores. The router's daemons run with real-time priority, as `weir bfd` does, because a router is a machine of its own; the switch is told once where hosts are: it does not flood what goes to one that is lost",
	"failed: requests without an answer for 5 s, or with a wrong one. late: those that took more than 0.9 s, because a packet had to be sent again",
	"every change is a value of its own, so a cell is the median of the changes, not of rounds; so is `failed`, of which a round has one",
}

func measureConvergence(ctx context.Context, s *session) error {
	options := edge.Options{Directors: 4, Backends: 4, Drain: 500 * time.Millisecond}
	clean, losses, deaths := cleanPerRound, lossPerRound, deathPerRound
	if s.settings.Smoke {
		options.Directors, options.Backends, clean, losses, deaths = 2, 2, 4, 1, 1
	}
	e, err := inEdge(ctx, s, options)
	if err != nil {
		return err
	}
	r := e.Request(ctx)
	defer r.Close()
	changes := &changer{session: s, edge: e, requests: r, random: rand.New(rand.NewPCG(1, 2))}
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return changes.clean(ctx, clean) },
		func(ctx context.Context) error { return changes.lose(ctx, losses, hostLost) },
		func(ctx context.Context) error { return changes.kill(ctx, losses) },
		func(ctx context.Context) error { return changes.die(ctx, deaths) },
	}
	if !s.settings.Smoke {
		steps = append(steps, func(ctx context.Context) error { return changes.withoutBFD(ctx, losses) })
	}
	return s.inRounds(ctx, steps...)
}

// inEdge builds the lab with those options.
func inEdge(ctx context.Context, s *session, options edge.Options) (*edge.Edge, error) {
	return inLab(ctx, s, func(ctx context.Context, lab *netlab.Lab) (*edge.Edge, error) { return edge.New(ctx, lab, options) })
}

// changer makes changes, and records what comes of them.
type changer struct {
	*session
	edge     *edge.Edge
	requests *edge.Requests
	random   *rand.Rand
	history  []event
	stays    *edge.Director // the director that must not end; nil: any may
}

// event is a change.
type event struct {
	at   time.Time
	what string
}

// happens notes that something is about to change.
func (c *changer) happens(format string, args ...any) {
	c.history = append(c.history, event{time.Now(), fmt.Sprintf(format, args...)})
}

// report reports requests that have failed since then, and what happened around them.
func (c *changer) report(since time.Time) {
	stories := c.edge.Stories(c.requests, since)
	for _, story := range stories {
		c.say("  failed: %s", story)
	}
	if len(stories) == 0 {
		return
	}
	for _, e := range c.history {
		if !e.at.Before(since) {
			c.say("  %s %s", e.at.Format("15:04:05.000"), e.what)
		}
	}
}

// note records a delay.
func (c *changer) note(what string, d edge.Delay) {
	if d.Route > 0 {
		c.add(what, nil, routeDelay, milliseconds(d.Route))
	}
	c.add(what, nil, trafficDelay, milliseconds(d.Traffic))
}

// counting records how many requests have failed while something happens, and until all of them
// have ended.
func (c *changer) counting(ctx context.Context, what string, happens func() error) error {
	began, before := time.Now(), c.requests.Made()
	if err := happens(); err != nil {
		return err
	}
	if err := c.requests.Ended(ctx, time.Now()); err != nil {
		return err
	}
	c.report(began)
	c.add(what, nil, failed, float64(c.requests.Failed(began)))
	c.add(what, nil, slow, float64(c.requests.Late(began)))
	c.add(what, nil, made, float64(c.requests.Made()-before))
	return nil
}

// clean makes that many changes of the number of directors and backends.
func (c *changer) clean(ctx context.Context, times int) error {
	return c.counting(ctx, cleanChanges, func() error {
		for range times {
			if err := c.one(ctx); err != nil {
				return err
			}
		}
		return c.whole(ctx)
	})
}

// one makes a change.
func (c *changer) one(ctx context.Context) error {
	if c.random.IntN(2) == 0 {
		b := c.edge.Backends[c.random.IntN(len(c.edge.Backends))]
		switch {
		case !b.Active:
			return c.comes(ctx, b)
		case c.edge.ActiveBackends() > 1:
			c.happens("%s drains", b.Name)
			d, err := c.edge.Remove(ctx, b)
			c.happens("%s is gone: %v", b.Name, d)
			c.note(backendGoes, d)
			return err
		}
	}
	d := c.edge.Directors[c.random.IntN(len(c.edge.Directors))]
	switch {
	case !d.Running:
		return c.starts(ctx, d)
	case c.edge.RunningDirectors() > 1 && d != c.stays:
		c.happens("%s stops", d.Name)
		delay, err := c.edge.Stop(ctx, d)
		c.happens("%s is gone: %v", d.Name, delay)
		c.note(directorStops, delay)
		return err
	}
	return c.one(ctx)
}

func (c *changer) comes(ctx context.Context, b *edge.Backend) error {
	c.happens("%s is added", b.Name)
	d, err := c.edge.Add(ctx, b)
	c.happens("%s is there: %v", b.Name, d)
	c.note(backendComes, d)
	return err
}

func (c *changer) starts(ctx context.Context, d *edge.Director) error {
	c.happens("%s starts", d.Name)
	delay, start, err := c.edge.Start(ctx, d)
	c.happens("%s is there: %v after %v", d.Name, delay, start)
	c.note(directorStarts, delay)
	c.add(directorStarts, nil, startDelay, milliseconds(start))
	return err
}

// whole starts all directors that do not run, and adds all backends that are missing.
func (c *changer) whole(ctx context.Context) error {
	for _, d := range c.edge.Directors {
		if !d.Running {
			if err := c.starts(ctx, d); err != nil {
				return err
			}
		}
	}
	for _, b := range c.edge.Backends {
		if !b.Active {
			if err := c.comes(ctx, b); err != nil {
				return err
			}
		}
	}
	return c.edge.Settled(ctx)
}

// lose loses hosts of directors, one after the other.
func (c *changer) lose(ctx context.Context, times int, what string) error {
	for i := range times {
		d := c.edge.Directors[i%len(c.edge.Directors)]
		delay, err := c.edge.Lose(ctx, d, c.requests)
		if err != nil {
			return err
		}
		c.note(what, delay)
		if err := c.edge.Restore(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

func (c *changer) withoutBFD(ctx context.Context, times int) error {
	if err := c.edge.UseBFD(ctx, false); err != nil {
		return err
	}
	return errors.Join(c.lose(ctx, times, hostLostHold), c.edge.UseBFD(ctx, true))
}

// kill kills processes of directors.
func (c *changer) kill(ctx context.Context, times int) error {
	return c.counting(ctx, processLost, func() error {
		for i := range times {
			if err := c.edge.Kill(ctx, c.edge.Directors[i%len(c.edge.Directors)], time.Second); err != nil {
				return err
			}
		}
		return nil
	})
}

// die lets backends die, one after the other.
func (c *changer) die(ctx context.Context, times int) error {
	for i := range times {
		b := c.edge.Backends[i%len(c.edge.Backends)]
		took, err := c.edge.Die(ctx, b)
		if err != nil {
			return err
		}
		c.add(backendDies, nil, quietDelay, milliseconds(took))
		if err := c.edge.Revive(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// cleanDelays are the delays of traffic of all clean changes.
func cleanDelays(s *record.Scenario) ([]float64, error) {
	var all []float64
	for _, what := range []string{directorStops, directorStarts, backendGoes, backendComes} {
		if m := s.Find(what, nil, trafficDelay.Name); m != nil {
			all = append(all, m.Rounds...)
		}
	}
	if len(all) == 0 {
		return nil, missingError{subject{cleanChanges, nil}, trafficDelay}
	}
	return all, nil
}

// delayOf is that part's quantile of what one kind of change has.
func delayOf(what string, quantity record.Quantity, part float64) value {
	return quantileOf(subject{what, nil}, quantity, part)
}

// cleanQuantile is the same for all clean changes.
func cleanQuantile(part float64) value {
	return func(s *record.Scenario) (float64, error) {
		all, err := cleanDelays(s)
		if err != nil {
			return math.NaN(), err
		}
		return record.Quantile(all, part), nil
	}
}
