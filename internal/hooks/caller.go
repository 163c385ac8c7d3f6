// Package hooks tells programs and servers which VIPs a director forwards, and which backends are up,
// by calling each of them until it has taken the current state. For example, a hook sets a route
// through a cloud's API where no router speaks BGP, or pages an operator.
package hooks

import (
	"context"
	"log/slog"
	"reflect"
	"sync"

	"weir.io/weir/internal/model"
)

// Caller keeps all hooks informed.
type Caller struct {
	log     *slog.Logger
	running sync.WaitGroup

	mu        sync.Mutex
	hooks     []model.Hook
	vips      []model.VIP
	services  []model.ToldService
	draining  bool
	closed    bool
	notifiers map[string]*notifier // by the hook's name
}

// New returns a caller that has no hooks.
func New(log *slog.Logger) *Caller {
	return &Caller{log: log, notifiers: map[string]*notifier{}}
}

// Set replaces the hooks, and the VIPs and services that they are told. It does not wait: hooks are
// called in the background. A hook that has changed is told like a new one.
func (c *Caller) Set(hooks []model.Hook, vips []model.VIP, services []model.ToldService) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.hooks, c.vips, c.services = hooks, vips, services
	c.reconcile()
}

// Withdraw tells hooks that no VIP is up any more, whatever is set later.
func (c *Caller) Withdraw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.draining = true
	c.reconcile()
}

// Close ends the calls that are under way. What is up stays up: the datapath goes on.
func (c *Caller) Close() {
	c.mu.Lock()
	c.closed = true
	for _, k := range c.notifiers {
		k.end()
	}
	c.mu.Unlock()
	c.running.Wait()
}

// Status says what became of each hook's calls, in the configuration's order.
func (c *Caller) Status() []model.HookStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []model.HookStatus
	for i := range c.hooks {
		if k := c.notifiers[c.hooks[i].Name]; k != nil {
			list = append(list, k.report())
		}
	}
	return list
}

// reconcile starts and ends notifiers as set. The mutex is held.
func (c *Caller) reconcile() {
	stays := map[string]bool{}
	for i := range c.hooks {
		hook := c.hooks[i]
		now := c.wantedBy(&hook)
		stays[hook.Name] = true
		k := c.notifiers[hook.Name]
		switch {
		case k == nil:
			k = c.start(hook, now, nil)
		case !reflect.DeepEqual(k.hook, hook):
			k.end()
			k = c.start(hook, now, k)
		}
		k.set(now)
	}
	for name, k := range c.notifiers {
		if !stays[name] {
			k.end()
			delete(c.notifiers, name)
		}
	}
}

// wantedBy is what a hook should be told. While the director drains, no VIP is up any more; backends
// are what they are.
func (c *Caller) wantedBy(hook *model.Hook) wanted {
	now := wanted{draining: c.draining}
	if hook.IsAbout(model.HookVIPs) && !c.draining {
		now.vips = c.vips
	}
	if hook.IsAbout(model.HookBackends) {
		now.services = c.services
	}
	return now
}

// start starts a hook's notifier after the earlier one has ended: a hook is never called twice at
// once.
func (c *Caller) start(hook model.Hook, now wanted, before *notifier) *notifier {
	ctx, cancel := context.WithCancel(context.Background())
	k := newNotifier(hook, now, cancel, c.log.With("hook", hook.Name))
	c.notifiers[hook.Name] = k
	c.running.Go(func() {
		defer close(k.ended)
		if before != nil {
			<-before.ended
		}
		k.run(ctx)
	})
	return k
}
