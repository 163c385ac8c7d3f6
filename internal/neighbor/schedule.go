package neighbor

import (
	"net/netip"
	"time"
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

// limiter allows that many events per second, and a certain number at once.
type limiter struct {
	rate  float64
	room  float64
	most  float64 // at once
	since time.Duration
}

// newLimiter allows as many events at once as in a tenth of a second.
func newLimiter(rate uint32, now time.Duration) *limiter {
	most := max(1, float64(rate)/10)
	return &limiter{rate: float64(rate), room: most, most: most, since: now}
}

// allow reports whether one more event is allowed now.
func (l *limiter) allow(now time.Duration) bool {
	l.room = min(l.room+(now-l.since).Seconds()*l.rate, l.most)
	l.since = now
	if l.room < 1 {
		return false
	}
	l.room--
	return true
}
