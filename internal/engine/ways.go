package engine

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// Ways says where packets for backends cannot be sent yet: a Forwarder that has just taken a table
// has to resolve neighbors first.
type Ways interface {
	// Unreached returns the VIPs, in no segment, that have a backend that should get packets and
	// gets none, because its neighbor is not resolved.
	Unreached() map[netip.Addr]bool
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
	ways   Ways                       // nil: no part waits for ways
	checks firstChecks                // what waits for results of checks
	next   *model.Announcement        // the announcement that is told when nothing waits any more
	since  map[netip.Prefix]time.Time // since when each prefix waits
	again  <-chan time.Time           // when there is another look; nil: nothing waits
	pause  time.Duration
}

// firstChecks are the VIPs that are up only because nothing is known yet about their backends.
type firstChecks struct {
	patience map[netip.Addr]time.Duration // how long each waits for the first results of its checks
	others   map[netip.Addr]bool          // VIPs that are up by what is known, or without checks; if one waits
}

// newFirstChecks reads them from a plan. A check ends by its timeout, and its result is applied a
// moment later. (First checks begin one after the other: of more than 10,000 backends that are new at
// once, the last may have no result by then.)
func newFirstChecks(desired *model.Config, report *Report) (c firstChecks) {
	for i := range report.Services {
		if s := &report.Services[i]; s.isGuess() {
			if c.patience == nil {
				c.patience = map[netip.Addr]time.Duration{}
			}
			timeout := time.Duration(desired.Services[i].Health.Timeout)
			c.patience[s.ID.VIP] = max(c.patience[s.ID.VIP], min(timeout, firstResults)+waysPatience)
		}
	}
	if c.patience == nil {
		return c
	}
	c.others = map[netip.Addr]bool{}
	for i := range report.Services {
		if s := &report.Services[i]; s.Up && s.ID.Segment == (model.Segment{}) && !s.isGuess() {
			c.others[s.ID.VIP] = true
		}
	}
	return c
}

// isGuess reports whether a service whose VIP may be told is up only because nothing is known yet
// about its backends.
func (s *ServiceReport) isGuess() bool {
	return s.Up && s.ID.Segment == (model.Segment{}) && s.Health != nil && s.Health.Up == 0 && s.Health.Unknown > 0
}

// atMost bounds how long they wait.
func (c *firstChecks) atMost(longest time.Duration) {
	for vip, its := range c.patience {
		c.patience[vip] = min(its, longest)
	}
}

// of returns how long a prefix waits for results of checks: not at all if it covers a VIP that
// needs none.
func (c *firstChecks) of(p netip.Prefix) (patience time.Duration) {
	if len(c.patience) == 0 || coversAny(p, c.others) {
		return 0
	}
	if p.IsSingleIP() {
		return c.patience[p.Addr()]
	}
	for vip, its := range c.patience {
		if p.Contains(vip) {
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

// lookAgain tells the prefixes that have waited for long enough.
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
	var unreached map[netip.Addr]bool
	if w.ways != nil {
		unreached = w.ways.Unreached()
	}
	before, moment, rest := w.since, time.Now(), w.pause
	w.since = map[netip.Prefix]time.Time{}
	if len(unreached) == 0 && len(w.checks.patience) == 0 {
		return now
	}
	if told == nil {
		told = &model.Announcement{}
	}
	routes := prefixesOf(told.Routes)
	waits := func(p netip.Prefix) bool {
		patience := w.checks.of(p)
		if coversAny(p, unreached) {
			patience = max(patience, waysPatience)
		}
		if patience == 0 {
			return false
		}
		since, known := before[p]
		if !known {
			since = moment
		}
		w.since[p] = since
		left := patience - moment.Sub(since)
		if left > 0 {
			rest = min(rest, left)
		}
		return left > 0
	}
	now.Routes = slices.DeleteFunc(slices.Clone(now.Routes), func(r model.Route) bool {
		return !routes[r.Prefix] && waits(r.Prefix)
	})
	now.VIPs = slices.DeleteFunc(slices.Clone(now.VIPs), func(vip netip.Addr) bool {
		_, known := slices.BinarySearchFunc(told.VIPs, vip, netip.Addr.Compare)
		return !known && waits(netip.PrefixFrom(vip, vip.BitLen()))
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

func coversAny(p netip.Prefix, addresses map[netip.Addr]bool) bool {
	if p.IsSingleIP() {
		return addresses[p.Addr()]
	}
	for a := range addresses {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
