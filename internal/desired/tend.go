package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
	"weir.io/weir/internal/store"
)

// leastPause is the shortest time before the controller looks again for generations to take out of the
// logs: those of many services leave together. After errors it waits longer each time, up to
// lastPause.
const (
	leastPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// assignPause is the same for generations that begin to place connections: those of many services
// begin at about the same time, and a notice may be as short as that.
const assignPause = 10 * time.Millisecond

// reportsPause is how often the logs are compared with what agents report, by each
// director.
const reportsPause = 5 * time.Second

// Reports are what agents say about connections.
type Reports interface {
	// Latest returns the last report about each of these backends, and whether it is known yet
	// which reports exist. Of a backend in a segment it may be one about the same address in none.
	Latest(backends map[model.HostAddress]bool) (reports map[model.HostAddress]model.AgentReport, known bool)
	// Signs is sent to when there is a report with signs of strain, or the first one without any.
	Signs() <-chan struct{}
	// None reports whether it is known that there are no reports, of whichever backends.
	None() bool
}

// renew brings the evidence up to date, unless it was just renewed for the same backends.
func (c *Controller) renew() {
	c.renewing.Lock()
	defer c.renewing.Unlock()
	if c.reports == nil {
		return
	}
	now := time.Now()
	backends, services := c.backends()
	if now.Sub(c.renewed) < reportsPause && maps.Equal(backends, c.evidenceOf) {
		return
	}
	latest, known := c.reports.Latest(backends)
	maps.DeleteFunc(latest, func(at model.HostAddress, r model.AgentReport) bool { return isOfAnother(at, &r, services[at]) })
	c.evidence.Renew(latest, known, now)
	c.renewed, c.evidenceOf = now, backends
}

// isOfAnother says whether a report is of another host than the backend at an address: of one that has
// the same address, and is in no segment. Agents up to 0.1 do not say in which they are, so services
// tell them apart.
func isOfAnother(at model.HostAddress, r *model.AgentReport, services []model.ServiceID) bool {
	return r.Segment != at.Segment && !slices.ContainsFunc(services, r.IsAbout)
}

// backends returns the addresses of all backends in mode gue, and the services of those in segments.
func (c *Controller) backends() (all map[model.HostAddress]bool, services map[model.HostAddress][]model.ServiceID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, services = map[model.HostAddress]bool{}, map[model.HostAddress][]model.ServiceID{}
	for d := range c.everything().All() {
		for i := range d.Service.Backends {
			b := &d.Service.Backends[i]
			if b.ModeIn(d.Service) != model.GUE {
				continue
			}
			at := b.AddressIn(&d.Service)
			all[at] = true
			if at.Segment != (model.Segment{}) {
				services[at] = append(services[at], d.Service.ID())
			}
		}
	}
	return all, services
}

// Agents says how many backends are reported on.
func (c *Controller) Agents() model.ReporterStatus {
	c.renew()
	return c.evidence.Status(time.Now())
}

// Run takes generations out of the logs in time, adds those that wait for room or for a store, and
// follows what the group writes, until the context ends.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { c.whenDue(ctx, partLogs, leastPause, c.moved.tend, c.due, c.tend) })
	running.Go(func() { c.followRuns(ctx) })
	running.Go(func() { c.whenDue(ctx, "coming generations", assignPause, c.moved.assign, c.dueToAssign, c.assign) })
	if c.reports != nil && c.group != nil {
		running.Go(func() { c.listen(ctx) })
	}
	if c.health != nil {
		running.Go(func() { c.watch(ctx) })
	}
	if c.group != nil {
		running.Go(func() { c.whenDue(ctx, "the group's logs", leastPause, c.moved.tendShared, c.dueShared, c.tendShared) })
		c.noteRuns()
		for s := range c.news {
			c.adopt(s)
			c.noteRuns()
		}
	}
	running.Wait()
}

// whenDue does something when it is due, and again no sooner than after the least pause. If it
// fails, or leaves as much to do as before, it is tried again after longer and longer pauses, and
// is on the list.
func (c *Controller) whenDue(ctx context.Context, part string, least time.Duration, moved <-chan struct{}, due func() time.Time, do func() error) {
	pauses, failed := retry.Backoff{First: least, Last: lastPause}, false
	pause := pauses.Next()
	for ctx.Err() == nil {
		at := due()
		var next <-chan time.Time
		if !at.IsZero() {
			next = time.After(max(time.Until(at), pause))
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
			if !failed {
				pauses.Reset()
				pause = pauses.Next()
			}
			continue
		case <-next:
		}
		err := do()
		if ctx.Err() == nil && !errors.As(err, new(*PendingError)) { // the engine lists that, as the kernel's problem
			c.problems.Report(model.ProblemStore, part, notUpToDate(err))
		}
		failed = err != nil
		if !failed && !due().Equal(at) {
			pauses.Reset()
		}
		pause = pauses.Next()
	}
}

func notUpToDate(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("logs are not up to date, what runs goes on: %w", err)
}

// firstDue returns when a generation, or slots of one, may first leave one of the logs, or a
// backend that starts slowly gets another share, or the zero time. compared is when the logs were
// last compared with agents' reports; they are the group's or this director's own.
func (c *Controller) firstDue(s store.State, compared time.Time, shared bool) time.Time {
	known := c.knows(s, shared)
	var first time.Time
	note := func(due time.Time) {
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	for d := range s.Tended().All() {
		note(history.Due(d.Log, &d.Service, c.engine.Held(d.Service.ID()), c.evidence, known.now))
		note(known.dueToStep(d.Log, &d.Service))
		if awaitsReports(d.Log, &d.Service, c.evidence) {
			note(compared.Add(reportsPause))
		}
	}
	return first
}

// due returns when tend has something to do next, or the zero time.
func (c *Controller) due() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unstored != nil {
		return time.Now()
	}
	return c.firstDue(c.state, c.compared, false)
}

// dueShared returns when tendShared has something to do next, or the zero time.
func (c *Controller) dueShared() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.firstDue(c.shared, c.comparedShared, true)
}

// tend does what is due in this director's own store.
func (c *Controller) tend() error {
	c.mu.Lock()
	file := c.unstored
	c.mu.Unlock()
	if file != nil {
		err := c.SetFile(*file)
		if errors.As(err, new(*RefusedError)) {
			return nil // it is listed as a problem
		}
		return err
	}
	c.renew()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compared = time.Now()
	after, err := c.update(c.local, c.trim(false))
	if err != nil || after.Revision == c.state.Revision {
		return err
	}
	c.state = after
	return c.apply()
}

// learned is when this director learned of a service's newest generation.
type learned struct {
	number uint64
	at     time.Time
}

// asOf returns a log as it is at a time: its newest generations may place no connections yet. The
// lock is held.
func (c *Controller) asOf(id model.ServiceID, log model.Log, now time.Time) model.Log {
	if len(log.Generations) == 0 {
		return log
	}
	if newest := log.Generations[0].Number; c.learned[id].number != newest {
		c.learned[id] = learned{newest, now}
	}
	coming, next := history.Coming(log, c.learned[id].at, now)
	log.Coming = coming
	if coming > 0 && (c.placing.IsZero() || next.Before(c.placing)) {
		c.placing = next
	}
	return log
}

// dueToAssign returns when a generation that is coming first places connections, or the
// zero time.
func (c *Controller) dueToAssign() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.placing
}

// assign lets generations place connections when their time has come.
func (c *Controller) assign() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.placing.IsZero() || time.Now().Before(c.placing) {
		return nil
	}
	return c.apply()
}
