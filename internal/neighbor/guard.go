package neighbor

import (
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// guard checks every frame: it says for which VIPs this director answers at this moment.
type guard struct {
	clock func() time.Duration

	mu    sync.RWMutex
	until time.Duration // the end of answering, by the clock; it is before the lease's end
	held  map[model.NeighborPlace]map[model.VIP]bool
}

// forever is the end of answering for a director that needs no lease.
const forever = time.Duration(math.MaxInt64)

// bootTime also goes on while the host is suspended.
func bootTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // it cannot fail
	return time.Duration(now.Nano())
}

// send calls a function if this director answers for a VIP at a place. When set has returned,
// nothing is sent by the earlier VIPs.
func (g *guard) send(at model.NeighborPlace, vip model.VIP, frames func()) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.held[at][vip] || g.clock() >= g.until {
		return false
	}
	frames()
	return true
}

// set sets the VIPs that are answered for.
func (g *guard) set(held map[model.NeighborPlace]map[model.VIP]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = held
}

// allow sets the end of answering, and returns whether the earlier end had passed.
func (g *guard) allow(until time.Duration) (back bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	back = g.clock() >= g.until
	g.until = until
	return back
}

// lapsed reports whether the time is over.
func (g *guard) lapsed() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.clock() >= g.until
}

// only ends the answers for all VIPs but these, which are in order.
func (g *guard) only(vips []model.VIP) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, held := range g.held {
		for vip := range held {
			if _, stays := slices.BinarySearchFunc(vips, vip, model.VIP.Compare); !stays {
				delete(held, vip)
			}
		}
	}
}
