package routerlab

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// Watch notes how often the routes of a host's kernel change.
type Watch struct {
	done chan struct{}

	mu    sync.Mutex
	count map[netip.Prefix]int
}

// WatchRoutes begins to watch: every change after it returns is seen eventually.
func WatchRoutes(h *netlab.Host) (*Watch, error) {
	w := &Watch{done: make(chan struct{}), count: map[netip.Prefix]int{}}
	updates := make(chan netlink.RouteUpdate, 1024)
	err := h.Do(func() error { return netlink.RouteSubscribe(updates, w.done) })
	if err != nil {
		return nil, fmt.Errorf("watch the routes of %s: %w", h.Name, err)
	}
	go func() {
		for u := range updates {
			if u.Table == unix.RT_TABLE_MAIN && u.Dst != nil {
				w.note(u)
			}
		}
	}()
	return w, nil
}

func (w *Watch) note(u netlink.RouteUpdate) {
	address, _ := netip.AddrFromSlice(u.Dst.IP)
	bits, _ := u.Dst.Mask.Size()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[netip.PrefixFrom(address.Unmap(), bits)]++
}

// Changes returns how often the route to exactly this prefix has come, changed or gone.
func (w *Watch) Changes(prefix netip.Prefix) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count[prefix]
}

// Close ends the watch.
func (w *Watch) Close() { close(w.done) }
