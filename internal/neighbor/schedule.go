package neighbor

import (
	"hash/maphash"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// repeats are the times of a VIP's announcements, from the first one on: frames get lost, and
// switches that have just seen a link come up may pass none for a while.
var repeats = []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// announced is the progress of a VIP's announcements on one link.
type announced struct {
	since time.Duration // by the speaker's clock
	done  int           // of repeats
	due   time.Duration
}

// again returns a VIP's announcements from the beginning.
func again(now time.Duration) *announced { return &announced{since: now, due: now} }

// next notes that the VIP was announced. After the last repeat it is announced regularly: a switch
// forgets a host that never sends, and floods or loses frames for it.
func (a *announced) next(vip netip.Addr, now, refresh time.Duration) {
	a.done++
	if a.done < len(repeats) {
		a.due = max(a.since+repeats[a.done], now)
		return
	}
	if a.done == len(repeats) { // VIPs that were taken together are not all announced at the same time
		a.due = now + refresh/2 + time.Duration(spread(vip))*refresh/2/256
		return
	}
	a.due = now + refresh
}

// spread returns a byte that differs between VIPs that are next to each other.
func spread(vip netip.Addr) byte {
	b := vip.As16()
	return b[15]*167 + b[14]*59 + b[13]
}

// limiter allows so many events per second, by a speaker's clock.
type limiter struct{ *rate.Limiter }

// newLimiter allows as many events at once as in a tenth of a second.
func newLimiter(perSecond uint32) *limiter {
	return &limiter{rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/10)))}
}

// allow reports whether one more event is allowed now.
func (l *limiter) allow(now time.Duration) bool { return l.AllowN(time.Time{}.Add(now), 1) }

// Answers per second on one interface and of one protocol. A host asks for a VIP at most once a
// second, and less than twice a minute when it knows the answer; a router may ask for all VIPs.
const (
	answersPerSecond = 2000 // shared by all askers
	answersPerAsker  = 16   // more, for one asker alone
)

// askers bounds the answers: each asker has a few of its own, and shares the others with all. So one
// that asks without end leaves the rest answered. Askers are told apart by a hash of their Ethernet
// address: a host that forges many addresses can use up everything, and that is bounded, too.
type askers struct {
	seed   maphash.Seed // nobody can choose addresses that share another asker's place
	own    [256]limiter
	shared *limiter
}

func newAskers() *askers {
	a := &askers{seed: maphash.MakeSeed(), shared: newLimiter(answersPerSecond)}
	for i := range a.own {
		a.own[i] = limiter{rate.NewLimiter(answersPerAsker, answersPerAsker)}
	}
	return a
}

// allow reports whether one more question of an asker may be answered now.
func (a *askers) allow(from mac, now time.Duration) bool {
	return a.own[maphash.Bytes(a.seed, from[:])%uint64(len(a.own))].allow(now) || a.shared.allow(now)
}
