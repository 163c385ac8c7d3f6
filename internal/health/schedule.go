package health

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"weir.io/weir/internal/model"
)

// early is how much too early a probe may begin: probes that are due at about the same time begin
// together, and the scheduler wakes up less often.
const early = time.Millisecond

// idle is the longest sleep of the scheduler.
const idle = time.Hour

// run begins probes when they are due, until the checker is closed.
func (c *Checker) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		c.connector.collect()
		pause := c.beginDue()
		if len(c.connector.dials) > 0 {
			pause = min(pause, look)
		}
		timer.Reset(pause)
	}
}

// beginDue begins the probes that are due, and returns the time until the next is due. While a line
// has as many probes under way as it may have, the next one that ends wakes the scheduler up.
func (c *Checker) beginDue() time.Duration {
	var due []*launch
	c.mu.Lock()
	now := time.Now()
	pause := idle
	for _, p := range []*pool{&c.pool, &c.programs} {
		p.lines.due(now.Add(early), p.most-p.running, func(from *line, t *target) {
			from.noteLate(t.due, now)
			due = append(due, c.launch(t))
		})
		var next time.Duration
		next, p.held = p.lines.wait(now, p.most-p.running)
		pause = min(pause, next)
	}
	c.armed = now.Add(pause)
	c.mu.Unlock()
	for _, l := range due {
		l.start()
	}
	return pause
}

// pause is the time from the last probe to the next. The first one is anywhere in the
// interval, so that targets that became known together do not stay together.
func (t *target) pause() time.Duration {
	how := t.check.How
	if !t.begun {
		t.begun = true
		return rand.N(time.Duration(how.Interval))
	}
	return time.Duration(how.Interval-how.Jitter) + rand.N(2*time.Duration(how.Jitter)+1)
}

// look is how long answers to the connector wait at most before they are collected: in a data
// center most are there by then.
const look = 10 * time.Millisecond

// mostStep is the coarsest step of the grid on which probes begin: fifty together cost half as much
// as fifty one by one, because each one alone finds the caches filled by other programs, and Go's
// runtime does its work at each wake-up and sleep only once.
const mostStep = 100 * time.Millisecond

// onGrid moves a time to the grid, which is finer for short intervals.
func (c *Checker) onGrid(at time.Time, interval time.Duration) time.Time {
	return c.begun.Add(at.Sub(c.begun).Round(min(mostStep, interval/10)))
}

// ownEvery is how often a failure of this host is logged.
const ownEvery = time.Minute

// Prevented returns why this host could not make a probe within the last minute, or nil.
func (c *Checker) Prevented() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.prevented()
}

// prevented is Prevented while the lock is held.
func (c *Checker) prevented() error {
	if time.Since(c.ownAt) > ownEvery {
		return nil
	}
	return c.own
}

// judge counts a target's last result.
func (c *Checker) judge(t *target) {
	f := t.last.failure
	said := succeeded
	if f != nil {
		said = f.Reason
	}
	c.counts[outcome{t.check.Redirect, said}]++
	if said == Local {
		if c.prevented() == nil { // the first reason stays, or each probe would be another problem
			c.own = fmt.Errorf("probes cannot be made, the backends stay what they are: service %q, backend %v: %w", t.check.Service, t.check.Backend, f)
		}
		c.ownAt = t.last.at
		if t.last.at.Sub(c.saidOwn) > ownEvery {
			c.saidOwn = t.last.at
			c.log.Error("probes cannot be made, the backends stay what they are", "service", t.check.Service,
				"backend", t.check.Backend, "error", f)
		}
		return
	}
	before := t.standing.state
	if !t.standing.note(f == nil, t.check.How, t.last.at) {
		return
	}
	c.stateChanged()
	c.logChange(t, before)
}

// logChange logs that a target's state has changed.
func (c *Checker) logChange(t *target, before model.HealthState) {
	log := c.log.With("service", t.check.Service, "backend", t.check.Backend, "to", t.check.To)
	down, again, up := "backend is down", "backend is up again", "backend is up"
	if t.check.Redirect {
		down, again, up = "backend cannot be redirected to: its connections fall back", "backend can be redirected to again", "backend can be redirected to"
	}
	switch f := t.last.failure; {
	case t.standing.state == model.HealthDown:
		log.Warn(down, "reason", f.Reason, "detail", f.Detail)
	case before == model.HealthDown:
		log.Info(again)
	default: // the normal case
		log.Debug(up)
	}
}

// queue has the targets that wait for their next probe, the next one first.
type queue []*target

// waitsNot is the place of a target that is not in the queue.
const waitsNot = -1

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements [heap.Interface].
func (q *queue) Push(x any) {
	t := x.(*target)
	t.place = len(*q)
	*q = append(*q, t)
}

// Pop implements [heap.Interface].
func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	t.place = waitsNot
	return t
}

// add puts a target in, or to another place.
func (q *queue) add(t *target) {
	if t.place == waitsNot {
		heap.Push(q, t)
		return
	}
	heap.Fix(q, t.place)
}

// drop takes a target out if it is there.
func (q *queue) drop(t *target) {
	if t.place != waitsNot {
		heap.Remove(q, t.place)
	}
}

func (q *queue) first() *target { return heap.Pop(q).(*target) }
