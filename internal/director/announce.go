package director

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"weir.io/weir/internal/bgp"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/group"
	"weir.io/weir/internal/hooks"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/neighbor"
	"weir.io/weir/internal/upkeep"
)

// announcers tell others which VIPs this director forwards.
type announcers struct {
	bgp      *bgp.Speaker
	hooks    *hooks.Caller
	neighbor *neighbor.Speaker
	log      *slog.Logger
}

// Set is the engine's way to all announcers.
func (a announcers) Set(now model.Announcement) {
	var sources neighbor.Sources
	if now.SNAT.Announce {
		sources = neighbor.Sources{Own: now.SNAT.Addresses, Others: now.Others}
	}
	if err := a.bgp.SetEVPN(now.EVPN); err != nil { // before Set: routers would forget what an earlier process told
		a.log.Error("tell other VTEPs of this director's networks", "error", err)
	}
	a.bgp.Set(now.BGP, withSources(&now, sources))
	a.hooks.Set(now.Hooks, now.VIPs, now.Services)
	a.neighbor.Set(now.Neighbor, now.Group, now.VIPs, sources)
}

// withSources adds to an announcement's routes those of full NAT's addresses, which are in no segment.
// Another director's
// route is a backup: its own director is preferred while that announces it, too.
func withSources(now *model.Announcement, sources neighbor.Sources) []model.Route {
	if !now.BGP.Given() || len(sources.Own) == 0 {
		return now.Routes
	}
	routes := slices.Clone(now.Routes)
	add := func(a netip.Addr, backup bool) {
		prefix := netip.PrefixFrom(a, a.BitLen())
		if !slices.ContainsFunc(routes, func(r model.Route) bool { return r.Segment == (model.Segment{}) && r.Prefix == prefix }) {
			routes = append(routes, model.Route{Prefix: prefix, Backup: backup})
		}
	}
	for _, a := range sources.Own {
		add(a, false)
	}
	for _, a := range sources.Others {
		add(a, true)
	}
	return routes
}

// neighborGroup lets the directors that share a store agree on which of them answers for which VIP.
func neighborGroup(group *group.Group) neighbor.Join {
	if group == nil {
		return nil
	}
	return func(self netip.Addr, lease time.Duration, notify func()) neighbor.Registry {
		return group.Owners(self, lease, notify)
	}
}

// gate holds back what is announced while no interface has the director's program: packets that are
// sent here then would go nowhere.
type gate struct {
	announcers
	open   func() bool
	others func() []netip.Addr // full NAT's addresses of other directors whose flows this one goes on with

	mu   sync.Mutex
	last *model.Announcement // nil: there was none
	lent []netip.Addr        // others, when it was passed on last
	told bool                // it was passed on, once
	was  bool                // open, when it was passed on last
	held bool                // VIPs were held back since the gate was open last
}

// Set is the engine's way to all announcers. Before the first announcement, none is withdrawn: routers
// would forget the routes that they keep from the process before.
func (g *gate) Set(now model.Announcement) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = &now
	g.pass(g.open())
}

// pass tells the announcers. The lock is held.
func (g *gate) pass(open bool) {
	g.was = open
	if !open && !g.told {
		return
	}
	now := *g.last
	if !open {
		now = withheld(now)
	}
	g.lent = g.lends()
	now.Others = g.lent
	g.told = true
	g.announcers.Set(now)
}

// withheld is an announcement of nothing. Other VTEPs still tell of this director's segments: without that, their
// hosts would be forgotten, and connections break when the interface is back.
func withheld(now model.Announcement) model.Announcement {
	now.Routes, now.VIPs, now.SNAT = []model.Route{}, nil, model.SNAT{}
	now.EVPN.Segments = slices.Clone(now.EVPN.Segments)
	for i := range now.EVPN.Segments {
		now.EVPN.Segments[i].Entries = nil
	}
	return now
}

// lends are the addresses of other directors that this one announces for them.
func (g *gate) lends() []netip.Addr {
	if !g.last.SNAT.Announce {
		return nil
	}
	return g.others()
}

// look opens and shuts the gate, and announces whose addresses have come and gone.
func (g *gate) look() ([]upkeep.Difference, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		return nil, nil
	}
	open := g.open()
	if open != g.was || open && !slices.Equal(g.lends(), g.lent) {
		g.pass(open)
	}
	// That nothing is left to announce, because no backend is healthy, does not end it.
	g.held = !open && (g.held || len(g.last.Routes) > 0 || len(g.last.VIPs) > 0 || g.last.SNAT.Announce)
	if !g.held {
		return nil, nil
	}
	return []upkeep.Difference{{What: "all", Found: "are not announced, because no interface has the director's program"}}, nil
}

// hearSignals begins to hear the signals that tell the director to end: the second one ends its grace
// period. SIGUSR2 says that another process takes over.
func (d *Director) hearSignals() (signals chan os.Signal, forget func()) {
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, daemon.EndSignals...)
	signal.Notify(d.handover, syscall.SIGUSR2)
	return signals, func() {
		signal.Stop(signals)
		signal.Stop(d.handover)
	}
}

// forgetFirst empties the channel of the signal that began the grace period. That signal may be under way
// to several channels, and have reached this one last: Notify waits until it has reached all.
func forgetFirst(signals chan os.Signal) {
	signal.Notify(signals, daemon.EndSignals...)
	select {
	case <-signals:
	default:
	}
}

// endAfterGrace lets the director forward for its grace period when it is told to stop, for clients
// whose routers have not turned away yet. Until now it would have ended at once: stillRuns cancels
// that, and is false if the director was told already. A second signal ends the wait.
func (d *Director) endAfterGrace(stop context.Context, stillRuns func() bool, signals chan os.Signal) (release func() bool) {
	if !stillRuns() {
		return func() bool { return false }
	}
	return context.AfterFunc(stop, func() {
		forgetFirst(signals)
		if grace := d.grace(); grace > 0 {
			d.forwardForGrace(signals, grace)
		}
		d.end()
	})
}

// grace is how long the director, which was told to end, still forwards. Routers must not keep the
// routes to a host that shuts down as they do to one whose next process comes at once: to that one
// the director hands over without a wait.
func (d *Director) grace() time.Duration {
	select {
	case <-d.handover:
		return 0
	default:
	}
	select {
	case <-d.shutdown:
		return max(d.gracePeriod, d.atShutdown)
	default:
		return d.gracePeriod
	}
}

// forwardForGrace withdraws what is announced, and waits for the grace period.
func (d *Director) forwardForGrace(signals <-chan os.Signal, grace time.Duration) {
	d.log.Info("director withdraws: it forwards for its grace period, and then detaches", "wait", grace)
	d.Stopping(fmt.Sprintf("has withdrawn, forwards for %v and then detaches", grace), grace)
	d.announcers.bgp.Withdraw(min(time.Duration(d.Config().BGP.GracefulShutdown), grace/2))
	d.announcers.hooks.Withdraw()
	d.announcers.neighbor.Withdraw()
	select {
	case <-signals:
		d.log.Info("told again: the director does not wait")
	case <-d.ctx.Done():
	case <-time.After(grace):
		d.over.Store(true)
	}
}

// closeAnnouncers ends the sessions with routers, and the calls of hooks. If forwarding goes on,
// announcements stay. VIPs that this director answers for itself are given up: a process that does
// not run cannot answer.
func (d *Director) closeAnnouncers() {
	if !d.over.Load() {
		d.announcers.bgp.Resume()
	}
	d.announcers.neighbor.Close()
	d.announcers.hooks.Close()
	d.announcers.bgp.Close()
}
