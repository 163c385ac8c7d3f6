package health

import (
	"context"
	"time"

	"weir.io/weir/internal/model"
)

// launch is a probe that is about to begin, or under way.
type launch struct {
	*Checker
	target  *target
	line    *line
	version int // of the check
	check   model.Check
	probe   probe
	ctx     context.Context // ends when the result is no longer wanted
	begun   time.Time
}

// launch takes what a probe needs from a target that no longer waits, and that its line has counted.
func (c *Checker) launch(t *target) *launch {
	t.line.in.running++
	l := &launch{Checker: c, target: t, line: t.line, version: t.version, check: t.check, probe: t.probe}
	if l.probe != nil {
		l.ctx, t.cancel = context.WithTimeout(c.ctx, time.Duration(t.check.How.Timeout))
	} else { // the connector watches the time itself
		l.ctx, t.cancel = context.WithCancel(c.ctx)
	}
	return l
}

// start sends the probe. It does not wait for the result.
func (l *launch) start() {
	l.begun = time.Now()
	a := &attempt{check: &l.check, way: l.path.Way(&l.check), timeout: time.Duration(l.check.How.Timeout)}
	if a.way.Later {
		l.later()
		return
	}
	if a.way.Fault != "" {
		l.end(a, 0, failure(Reason(a.way.Fault), "%s", a.way.Detail))
		return
	}
	if l.probe != nil {
		l.done.Go(func() {
			err := l.probe(l.ctx, a)
			l.end(a, time.Since(l.begun), err)
		})
		return
	}
	a.at = connecting
	l.connector.start(l.ctx, a, connects[l.check.How.Kind], func(took time.Duration, err error) { l.end(a, took, err) })
}

// soon is how long a probe waits if its way is not known yet.
const soon = 10 * time.Millisecond

// later lets the target wait until its way is known.
func (l *launch) later() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over() {
		return
	}
	l.target.end()
	l.target.due = l.begun.Add(soon)
	l.line.queue.add(l.target)
	signal(l.wake)
}

// over counts the probe as ended, and says whether its result no longer matters: the target is
// checked in another way, or not at all. The lock is held.
func (l *launch) over() bool {
	in := l.line.in
	in.running--
	l.line.running--
	in.lines.close(l.line)
	if in.held {
		signal(l.wake)
	}
	return l.target.version != l.version || l.target.gone || l.Checker.ctx.Err() != nil
}

// end takes the result of the probe and lets the target wait for the next one.
func (l *launch) end(a *attempt, took time.Duration, err error) {
	r := result{at: time.Now(), took: took, to: a.way.Target(), from: a.from, listed: a.listed}
	if err != nil {
		r.failure = explain(err, a.at, a.timeout)
		r.failure.Detail = printable(r.failure.Detail)
		if r.failure.Reason == Timeout || r.failure.Reason == Unreachable {
			l.path.Failed(&l.check)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.target
	if l.over() {
		return
	}
	t.end()
	r.failure = l.diagnosed(a, r.failure)
	t.last = r
	l.judge(t)
	if t.due = l.onGrid(l.begun.Add(t.pause()), time.Duration(t.check.How.Interval)); t.due.Before(r.at) {
		t.due = r.at
	}
	l.line.queue.add(t)
	if t.due.Before(l.armed) {
		signal(l.wake)
	}
}
