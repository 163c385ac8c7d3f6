// Package health finds out which backends answer. A [Checker] is told all checks to make
// ([Checker.Set]), makes each again and again, and says what is known about every backend
// ([Checker.States], [Checker.Results]).
//
// A probe is sent to a backend from this host, as if from a client; every director of a group does
// so by itself. How probes get there is a [Path].
package health

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"weir.io/weir/internal/model"
)

// Checker makes checks, each again and again, and keeps their results.
type Checker struct {
	path  Path
	log   *slog.Logger
	ctx   context.Context
	stop  context.CancelFunc
	begun time.Time

	scheduler sync.WaitGroup
	done      sync.WaitGroup // probes that are not the connector's
	connector connector      // owned by the scheduler
	redirects redirects

	wake         chan struct{} // the schedule has changed
	stateChanges chan struct{} // a state has changed

	mu      sync.Mutex
	others  []chan struct{} // are sent to like turns
	targets map[model.Target]*target
	pool
	programs pool // of the checks that run one
	// diagnoses is how many diagnoses are being made.
	diagnoses int
	armed     time.Time // when the scheduler wakes up by itself
	changes   uint64
	counts    map[outcome]uint64
	saidOwn   time.Time // when a failure of this host was last logged
	own       error     // why this host could not make a probe
	ownAt     time.Time // when it last could not
}

// outcome is a result of a kind of probe.
type outcome struct {
	redirect bool
	said     Reason
}

// succeeded counts probes that found a backend healthy.
const succeeded Reason = "ok"

// target is a backend and what is known about it.
type target struct {
	check    model.Check
	probe    probe
	standing standing
	last     result
	// diagnosis is that of the last failure that needed one.
	diagnosis diagnosis
	line      *line
	due       time.Time
	place     int // in the line's queue
	cancel    context.CancelFunc
	version   int // of the check: results of another version do not count
	begun     bool
	gone      bool // it is not checked any more
}

// result is what became of a probe.
type result struct {
	at      time.Time // when it ended; zero: no probe has ended
	took    time.Duration
	to      netip.AddrPort
	from    netip.AddrPort // invalid: there was no connection
	failure *Failure       // nil: the backend is healthy
	listed  []netip.Addr   // by a server of SCTP: see model.ListedAddresses
}

// New returns a checker that has nothing to check.
func New(path Path, log *slog.Logger) *Checker {
	ctx, stop := context.WithCancel(context.Background())
	c := &Checker{
		path: path, log: log, begun: time.Now(), ctx: ctx, stop: stop,
		wake: make(chan struct{}, 1), stateChanges: make(chan struct{}, 1),
		targets: map[model.Target]*target{}, pool: newPool(mostProbes()), programs: newPool(model.DefaultExecAtOnce), counts: map[outcome]uint64{},
	}
	c.scheduler.Go(c.run)
	return c
}

func newPool(most int) pool { return pool{most: most, lines: lines{of: map[lineKey]*line{}}} }

// mostProbes bounds the probes under way: each takes a descriptor, and other parts need some, too.
// A probe that is not answered keeps its descriptor until its timeout.
func mostProbes() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 256
	}
	return int(max(16, min(4096, files.Cur/2)))
}

// Close ends all probes, and returns when none is under way.
func (c *Checker) Close() {
	c.stop()
	c.scheduler.Wait()
	c.connector.close()
	c.done.Wait()
	c.redirects.ports.close()
}

// Set replaces the checks that are made. A backend's state stays as long as its check asks for the
// same; when the check changes it holds until the new check gives another result.
func (c *Checker) Set(checks []model.Check) {
	c.path.Set(checks)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	now := time.Now()
	wanted := make(map[model.Target]bool, len(checks))
	probes := map[*model.HealthCheck]probe{}
	var fresh []*target
	for i := range checks {
		wanted[checks[i].Target] = true
		if t := c.put(checks[i], probes, now); t != nil {
			fresh = append(fresh, t)
		}
	}
	for i, t := range inTurn(fresh) {
		t.due = now.Add(time.Duration(i) * spread)
		if t.version == 1 {
			t.due = t.due.Add(time.Duration(t.check.How.StartDelay))
		}
		t.line.queue.add(t)
	}
	for key, t := range c.targets {
		if !wanted[key] {
			t.line.queue.drop(t)
			t.end()
			t.gone = true
			t.line.leave()
			delete(c.targets, key)
		}
	}
	signal(c.wake)
}

// spread is the time between the first probes of new targets: all at once would be a burst.
const spread = 100 * time.Microsecond

// put adds a check or changes it, and returns its target if the next probe is due at once.
func (c *Checker) put(check model.Check, probes map[*model.HealthCheck]probe, now time.Time) *target {
	t := c.targets[check.Target]
	if t != nil && t.line.lineKey == keyOf(&check) && t.check.To == check.To && (t.check.Way == nil) == (check.Way == nil) && sameProbe(t.check.How, check.How) {
		c.reschedule(t, check)
		return nil
	}
	p, made := probes[check.How]
	if !made {
		var err error
		if p, err = c.newProbe(check.How); err != nil {
			// Validation refuses it; this is for callers that did not validate.
			p = func(context.Context, *attempt) error { return failure(Local, "%v", err) }
		}
		probes[check.How] = p
	}
	if t == nil {
		t = &target{place: waitsNot, standing: newStanding(check.How, check.Serving, now)}
		c.targets[check.Target] = t
	} else {
		t.standing.recheck(check.How)
		t.line.queue.drop(t)
		t.line.leave()
	}
	t.end()
	t.line, t.check, t.probe = c.join(&check), check, p
	t.version++
	return t
}

// reschedule takes over the fields of a check besides what it asks.
func (c *Checker) reschedule(t *target, check model.Check) {
	before, delay := t.check.How.Interval, t.check.How.StartDelay
	t.check = check
	if t.delayed() && t.place != waitsNot { // it still waits for its first probe
		t.due = t.due.Add(time.Duration(check.How.StartDelay - delay))
		t.line.queue.add(t)
		return
	}
	if t.line.in == &c.programs {
		c.programs.most = check.Programs.AtOnceOrDefault()
	}
	if check.How.Interval < before && t.place != waitsNot {
		if soon := time.Now().Add(time.Duration(check.How.Interval)); soon.Before(t.due) {
			t.due = soon
			t.line.queue.add(t)
		}
	}
}

// delayed reports whether the target has had no probe since it was added.
func (t *target) delayed() bool { return t.version == 1 && !t.begun && t.last.at.IsZero() }

// end makes the probe under way, if one is, end without a result.
func (t *target) end() {
	if t.cancel != nil {
		t.cancel()
		t.cancel = nil
	}
}

// sameProbe reports whether two checks ask for the same, however often.
func sameProbe(a, b *model.HealthCheck) bool {
	if a == b {
		return true
	}
	x, y := *a, *b
	for _, h := range []*model.HealthCheck{&x, &y} {
		h.Interval, h.Jitter, h.Timeout, h.Rise, h.Fall, h.Panic, h.SlowStart, h.Passive, h.StartDelay = 0, 0, 0, 0, 0, nil, 0, nil, 0
	}
	return reflect.DeepEqual(x, y)
}

// Changed is sent to when a backend's state has changed since it was last received from.
func (c *Checker) Changed() <-chan struct{} { return c.stateChanges }

// Watch returns a channel that is sent to like that of Changed, for another reader.
func (c *Checker) Watch() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	other := make(chan struct{}, 1)
	c.others = append(c.others, other)
	return other
}

// Changes returns another number when a state has changed, or the set of checks may have.
func (c *Checker) Changes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// stateChanged tells that a state has changed. The lock is held.
func (c *Checker) stateChanged() {
	c.changes++
	signal(c.stateChanges)
	for _, other := range c.others {
		signal(other)
	}
}

// Found returns the state of every backend that is checked, and for how long it has had it.
func (c *Checker) Found() map[model.Target]model.Found {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := make(map[model.Target]model.Found, len(c.targets))
	for key, t := range c.targets {
		found[key] = model.Found{State: t.standing.state, For: time.Since(t.standing.since)}
	}
	return found
}

// States returns what is known about every backend that is checked. A backend that was serving when
// its check was switched on is missing until its first state is known.
func (c *Checker) States() map[model.Target]model.HealthState {
	c.mu.Lock()
	defer c.mu.Unlock()
	states := make(map[model.Target]model.HealthState, len(c.targets))
	for key, t := range c.targets {
		if !t.standing.serving {
			states[key] = t.standing.state
		}
	}
	return states
}

// Connections are those of the last probe of each target, from where and to where.
func (c *Checker) Connections() map[[2]netip.AddrPort]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := make(map[[2]netip.AddrPort]bool, len(c.targets))
	for _, t := range c.targets {
		if t.last.from.IsValid() {
			found[[2]netip.AddrPort{t.last.from, t.last.to}] = true
		}
	}
	return found
}

// Listed returns the servers of SCTP that list other addresses than the one that was asked, sorted.
func (c *Checker) Listed() (list []model.ListedAddresses) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.targets {
		if len(t.last.listed) > 0 {
			list = append(list, model.ListedAddresses{Service: t.check.Service, Backend: t.check.Backend, Asked: t.last.to.Addr(), Addresses: t.last.listed})
		}
	}
	slices.SortFunc(list, func(a, b model.ListedAddresses) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Backend, b.Backend))
	})
	return list
}

// Results returns the results of the last probes of every backend.
func (c *Checker) Results() map[model.Target]model.BackendHealth {
	c.mu.Lock()
	defer c.mu.Unlock()
	results := make(map[model.Target]model.BackendHealth, len(c.targets))
	for key, t := range c.targets {
		results[key] = t.health()
	}
	return results
}

func (t *target) health() model.BackendHealth {
	h := model.BackendHealth{
		Kind: t.check.How.Kind, State: t.standing.state, Since: t.standing.since.UTC().Truncate(time.Millisecond),
		To: t.last.to, Probed: t.last.at.UTC().Truncate(time.Millisecond), Took: model.Duration(t.last.took.Round(time.Microsecond)),
	}
	if (t.standing.serving || t.standing.state != model.HealthUnknown) && t.standing.failures < t.check.How.Fall {
		h.Failures = int(t.standing.failures)
	}
	switch f := t.last.failure; {
	case f != nil:
		h.Reason, h.Detail = string(f.Reason), f.Detail
	case t.delayed() && t.check.How.StartDelay > 0:
		h.Detail = fmt.Sprintf("its first probe is sent at %s (start-delay)", t.due.UTC().Format(time.RFC3339))
	}
	return h
}

// Probes returns how many probes of health have ended, by result.
func (c *Checker) Probes() []model.Tallied { return c.tallied(false, Reasons) }

// RedirectProbes returns how many probes of redirection have ended, by result; none, if no probe
// has ended.
func (c *Checker) RedirectProbes() []model.Tallied {
	list := c.tallied(true, RedirectReasons)
	if !slices.ContainsFunc(list, func(t model.Tallied) bool { return t.Count > 0 }) {
		return nil
	}
	return list
}

func (c *Checker) tallied(redirect bool, reasons []Reason) (list []model.Tallied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, said := range append([]Reason{succeeded}, reasons...) {
		list = append(list, model.Tallied{Name: string(said), Count: c.counts[outcome{redirect, said}]})
	}
	return list
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
