package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// How long the host must be quiet before it is looked at, and how often it is
// looked at anyway: default routes change without a word, because on some hosts
// routes change all the time.
const (
	settle  = 100 * time.Millisecond
	anyway  = 30 * time.Second
	abroad  = time.Second // where other namespaces are to be looked at: nobody tells of them
	backlog = 64          // notifications, before netlink drops some
)

// Follow refreshes whenever the host's addresses or interfaces change, until the
// context ends. What goes wrong is logged and tried again.
func (a *Agent) Follow(ctx context.Context) error {
	links, addresses := make(chan netlink.LinkUpdate, backlog), make(chan netlink.AddrUpdate, backlog)
	if err := netlink.LinkSubscribe(links, ctx.Done()); err != nil {
		return fmt.Errorf("follow interfaces: %w", err)
	}
	if err := netlink.AddrSubscribe(addresses, ctx.Done()); err != nil {
		return fmt.Errorf("follow addresses: %w", err)
	}
	go a.ageFlows(ctx)
	go func() {
		tick := time.NewTimer(a.pause())
		defer tick.Stop()
		var quiet <-chan time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-links:
				if !ok {
					links = nil
					continue
				}
				quiet = time.After(settle)
			case _, ok := <-addresses:
				if !ok {
					addresses = nil
					continue
				}
				quiet = time.After(settle)
			case <-tick.C:
				a.refresh()
				tick.Reset(a.pause())
			case <-quiet:
				quiet = nil
				a.refresh()
			}
		}
	}()
	return nil
}

func (a *Agent) refresh() {
	if err := a.Refresh(); err != nil {
		a.options.Log.Error("follow the host", "error", err)
	}
}

func (a *Agent) pause() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.config.Agent.Namespaces) > 0 {
		return abroad
	}
	return anyway
}
