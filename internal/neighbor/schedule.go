package neighbor

import (
	"net/netip"
	"time"
)

// repeats are when a VIP is announced, from when there is something to say: frames get lost,
// and switches that have just seen a link come up may pass none for a while.
var repeats = []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// announced is how far the announcements of a VIP on one link are.
type announced struct {
	since time.Duration // by the speaker's clock
	done  int           // of repeats
	due   time.Duration
}

// again begins anew.
func again(now time.Duration) *announced { return &announced{since: now, due: now} }

// next notes that the VIP was announced. After the last repeat it is announced every so
// often: a switch forgets a host that only ever hears, and floods or loses what is for it.
func (a *announced) next(vip netip.Addr, now, refresh time.Duration) {
	a.done++
	if a.done < len(repeats) {
		a.due = max(a.since+repeats[a.done], now)
		return
	}
	if a.done == len(repeats) { // not all of those that were taken together at the same time
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

// limiter lets so many things happen per second, and at once as many as in a tenth of one.
type limiter struct {
	rate  float64
	room  float64
	since time.Duration
}

func newLimiter(rate uint32, now time.Duration) *limiter {
	return &limiter{rate: float64(rate), room: burst(rate), since: now}
}

func burst(rate uint32) float64 { return max(1, float64(rate)/10) }

// allow reports whether one more thing may happen now.
func (l *limiter) allow(now time.Duration) bool {
	l.room = min(l.room+(now-l.since).Seconds()*l.rate, burst(uint32(l.rate)))
	l.since = now
	if l.room < 1 {
		return false
	}
	l.room--
	return true
}
