package engine

import (
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// Ways says where packets for backends cannot be sent yet: a Forwarder that has just taken a table
// has to resolve neighbors first.
type Ways interface {
	// Unreached returns the VIPs that have a backend that should get packets and gets none, because
	// its neighbor is not resolved.
	Unreached() map[model.VIP]bool
}

// How long a new announcement waits for the ways to the backends, and the first pause between two
// looks. A backend that does not answer by then may be dead, and no longer delays the announcement.
const (
	waysPatience = time.Second
	firstLook    = 5 * time.Millisecond
)

// waiting is the part of an announcement that is not told yet. Routers send packets as soon as they
// are told, and a backend without a known way counts as down, as it may by its first check.
type waiting struct {
	ways   Ways                      // nil: no part waits for ways
	checks firstChecks               // what waits for results of checks
	next   *model.Announcement       // the announcement that is told when nothing waits any more
	since  map[destination]time.Time // since when each destination waits
	again  <-chan time.Time          // when there is another look; nil: nothing waits
	pause  time.Duration
}

// firstChecks are the VIPs that are up only because nothing is known yet about their backends.
type firstChecks struct {
	patience map[model.VIP]time.Duration // how long each waits for the first results of its checks
	others   map[model.VIP]bool          // VIPs that are up by what is known, or without checks; if one waits
}

// newFirstChecks reads them from a plan. A check ends by its timeout, and its result is applied a
// moment later. (First checks begin one after the other: of more than 10,000 backends that are new at
// once, the last may have no result by then.)
func newFirstChecks(desired *model.Config, report *Report) (c firstChecks) {
	for i := range report.Services {
		if s := &report.Services[i]; s.isGuess() {
			if c.patience == nil {
				c.patience = map[model.VIP]time.Duration{}
			}
			vip, timeout := vipOf(s.ID), time.Duration(desired.Services[i].Health.Timeout)
			c.patience[vip] = max(c.patience[vip], min(timeout, firstResults)+waysPatience)
		}
	}
	if c.patience == nil {
		return c
	}
	c.others = map[model.VIP]bool{}
	for i := range report.Services {
		if s := &report.Services[i]; s.Up && !s.isGuess() {
			c.others[vipOf(s.ID)] = true
		}
	}
	return c
}

// isGuess reports whether a service is up only because nothing is known yet about its backends.
func (s *ServiceReport) isGuess() bool {
	return s.Up && s.Health != nil && s.Health.Up == 0 && s.Health.Unknown > 0
}

// atMost bounds how long they wait.
func (c *firstChecks) atMost(longest time.Duration) {
	for vip, its := range c.patience {
		c.patience[vip] = min(its, longest)
	}
}

// of returns how long a destination waits for results of checks: not at all if it covers a VIP that
// needs none.
func (c *firstChecks) of(d destination) (patience time.Duration) {
	if len(c.patience) == 0 || coversAny(d, c.others) {
		return 0
	}
	if d.prefix.IsSingleIP() {
		return c.patience[d.vip()]
	}
	for vip, its := range c.patience {
		if d.contains(vip) {
			patience = max(patience, its)
		}
	}
	return patience
}

// announce tells which VIPs are forwarded now, as soon as their backends have ways, and one of them
// may be up.
func (e *Engine) announce(next *model.Announcement, checks firstChecks) {
	if !e.begun { // the first plan has waited for results already
		checks.atMost(time.Until(e.checker.awaited))
	}
	e.waiting.next, e.waiting.checks, e.waiting.pause = next, checks, firstLook
	now := e.waiting.look(e.announced)
	e.advertise(&now)
}

// lookAgain tells the destinations that have waited for long enough.
func (e *Engine) lookAgain() {
	e.waiting.pause *= 2
	now := e.waiting.look(e.announced)
	if len(now.Routes) > len(e.announced.Routes) || len(now.VIPs) > len(e.announced.VIPs) || e.waiting.again == nil {
		e.advertise(&now)
	}
}

// look returns the part of the next announcement that can be told now, given what has been told.
func (w *waiting) look(told *model.Announcement) model.Announcement {
	w.again = nil
	now := *w.next
	var unreached map[model.VIP]bool
	if w.ways != nil {
		unreached = w.ways.Unreached()
	}
	before, moment, rest := w.since, time.Now(), w.pause
	w.since = map[destination]time.Time{}
	if len(unreached) == 0 && len(w.checks.patience) == 0 {
		return now
	}
	if told == nil {
		told = &model.Announcement{}
	}
	routes := destinationsOf(told.Routes)
	waits := func(d destination) bool {
		patience := w.checks.of(d)
		if coversAny(d, unreached) {
			patience = max(patience, waysPatience)
		}
		if patience == 0 {
			return false
		}
		since, known := before[d]
		if !known {
			since = moment
		}
		w.since[d] = since
		left := patience - moment.Sub(since)
		if left > 0 {
			rest = min(rest, left)
		}
		return left > 0
	}
	now.Routes = slices.DeleteFunc(slices.Clone(now.Routes), func(r model.Route) bool {
		d := destinationOf(&r)
		return !routes[d] && waits(d)
	})
	now.VIPs = slices.DeleteFunc(slices.Clone(now.VIPs), func(vip model.VIP) bool {
		_, known := slices.BinarySearchFunc(told.VIPs, vip, model.VIP.Compare)
		return !known && waits(hostOf(vip))
	})
	if len(now.Routes) < len(w.next.Routes) || len(now.VIPs) < len(w.next.VIPs) {
		w.again = time.After(rest)
	}
	return now
}

// forget drops what waits and should no longer be told.
func (w *waiting) forget(next *model.Announcement) {
	if w.next == nil {
		return
	}
	stays := *w.next
	stays.Routes, stays.VIPs = staying(stays.Routes, next.Routes), stayingUp(stays.VIPs, next.VIPs)
	w.next = &stays
}

func coversAny(d destination, vips map[model.VIP]bool) bool {
	if d.prefix.IsSingleIP() {
		return vips[d.vip()]
	}
	for vip := range vips {
		if d.contains(vip) {
			return true
		}
	}
	return false
}
