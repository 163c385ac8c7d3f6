package routerlab

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// Follower remembers where, and since when, a host's kernel sends packets to a prefix.
type Follower struct {
	done chan struct{}

	mu    sync.Mutex
	steps []step
}

// step is where packets go from some time on.
type step struct {
	at   time.Time
	hops []netip.Addr // sorted; none: there is no route
}

// Follow begins to follow the route to exactly that prefix.
func Follow(h *netlab.Host, prefix netip.Prefix) (*Follower, error) {
	f := &Follower{done: make(chan struct{})}
	updates := make(chan netlink.RouteUpdate, 1024)
	if err := h.Do(func() error { return netlink.RouteSubscribe(updates, f.done) }); err != nil {
		return nil, fmt.Errorf("follow the routes of %s: %w", h.Name, err)
	}
	hops, err := NextHops(h, prefix)
	if err != nil {
		return nil, err
	}
	f.steps = []step{{time.Now(), hops}}
	go func() {
		for u := range updates {
			if u.Table != unix.RT_TABLE_MAIN || u.Dst == nil {
				continue
			}
			address, _ := netip.AddrFromSlice(u.Dst.IP)
			if bits, _ := u.Dst.Mask.Size(); netip.PrefixFrom(address.Unmap(), bits) == prefix {
				f.note(u)
			}
		}
	}()
	return f, nil
}

func (f *Follower) note(u netlink.RouteUpdate) {
	var hops []netip.Addr
	if u.Type == unix.RTM_NEWROUTE {
		hops = gateways(&u.Route)
		slices.SortFunc(hops, netip.Addr.Compare)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, step{time.Now(), hops})
}

// Since returns since when packets go to these next hops, sorted, and to no others. It returns
// false if they do not.
func (f *Follower) Since(hops []netip.Addr) (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.steps[len(f.steps)-1]
	return last.at, slices.Equal(last.hops, hops)
}

// Close stops following.
func (f *Follower) Close() { close(f.done) }
