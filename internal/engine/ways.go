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
// are told, and a backend without a known way counts as down.
type waiting struct {
	ways  Ways                       // nil: no part waits
	next  *model.Announcement        // the announcement that is told when nothing waits any more
	since map[netip.Prefix]time.Time // since when each prefix waits
	again <-chan time.Time           // when there is another look; nil: nothing waits
	pause time.Duration
}

// announce tells which VIPs are forwarded now, as soon as their backends have ways.
func (e *Engine) announce(next *model.Announcement) {
	e.waiting.next, e.waiting.pause = next, firstLook
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
	if w.ways == nil {
		return now
	}
	unreached := w.ways.Unreached()
	before, moment, rest := w.since, time.Now(), w.pause
	w.since = map[netip.Prefix]time.Time{}
	if len(unreached) == 0 {
		return now
	}
	if told == nil {
		told = &model.Announcement{}
	}
	routes := prefixesOf(told.Routes)
	waits := func(p netip.Prefix) bool {
		if !coversAny(p, unreached) {
			return false
		}
		since, known := before[p]
		if !known {
			since = moment
		}
		w.since[p] = since
		left := waysPatience - moment.Sub(since)
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
