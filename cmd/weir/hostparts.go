package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// gate holds back what is announced while no interface has the director's program: packets that are
// sent here then would go nowhere.
type gate struct {
	announcers
	open func() bool

	mu   sync.Mutex
	last *model.Announcement // nil: there was none
	told bool                // it was passed on, once
	was  bool                // open, when it was passed on last
}

// Set is the engine's way to all announcers. They are not told that there is nothing before they
// were told something: routers would forget what they keep from the process before.
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
		now.Routes, now.VIPs = []model.Route{}, nil
	}
	g.told = true
	g.announcers.Set(now)
}

// look opens and shuts the gate.
func (g *gate) look() ([]upkeep.Difference, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		return nil, nil
	}
	open := g.open()
	if open != g.was {
		g.pass(open)
	}
	if open || len(g.last.Routes) == 0 && len(g.last.VIPs) == 0 {
		return nil, nil
	}
	return []upkeep.Difference{{What: "all", Found: "are not announced, because no interface has the director's program"}}, nil
}

// A BFD process that ends again and again is restarted as often as a part of the host is repaired.
const bfdMost, bfdWindow = upkeep.Most + 1, upkeep.Window

// bfdStarts allows that many starts of a process.
type bfdStarts struct{ at []time.Time }

func (s *bfdStarts) allow(now time.Time) error {
	for len(s.at) > 0 && now.Sub(s.at[0]) >= bfdWindow {
		s.at = s.at[1:]
	}
	if len(s.at) >= bfdMost {
		return fmt.Errorf("it has ended %d times within %v: it is left alone until a minute has passed", len(s.at), bfdWindow)
	}
	s.at = append(s.at, now)
	return nil
}

// look says once that the process was started again. If it is not there, that is a problem of kind
// bfd.
func (k *bfdKeeper) look() ([]upkeep.Difference, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	again := k.Restarts()
	switch {
	case len(k.wanted) == 0 || !k.admitted:
		k.restarts = again
	case again != k.restarts:
		k.restarts = again
		return []upkeep.Difference{{What: "process", Found: "had ended", Repair: func() error { return nil }}}, nil
	}
	return nil, nil
}

// keepHost makes the keeper of this host's parts.
func (d *director) keepHost(notices *upkeep.Notices, events *api.Events, gate *gate, socket *keptSocket) {
	parts := append(d.kernel.Parts(notices.By), d.checks.Part(notices.By),
		upkeep.Part{Name: "vips", Look: gate.look},
		upkeep.Part{Name: "bfd", Look: d.bfd.look},
		d.statePart(), socket.part())
	d.host.Store(upkeep.New(d.log, tellUpkeep(events), parts...))
}

// runHost runs that keeper until the context ends.
func (d *director) runHost(ctx context.Context, notices *upkeep.Notices) {
	host := d.host.Load()
	host.Wake()
	host.Run(ctx, notices.C())
}

// hostStatus is the state of the parts; nil: there is no keeper yet.
func (d *director) hostStatus() []model.Upkeep {
	if host := d.host.Load(); host != nil {
		return host.Status()
	}
	return nil
}

// ofInterfaces are the interfaces that the configuration knows by a former name: after the next
// boot of the host they would not be found.
func ofInterfaces(renamed map[string]string) (found []model.Problem) {
	for name, now := range renamed {
		found = append(found, model.Problem{Part: now, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("interface %s is called %s now", name, now), Fix: "name it so in director.interfaces"})
	}
	return found
}

// ofLowered are the problems of interfaces whose MTU has become smaller. A change by mistake and one
// on purpose look the same, and only a restart of the process says that it is meant.
func ofLowered(lowered []model.LoweredMTU, process string) (found []model.Problem) {
	for _, l := range lowered {
		found = append(found, model.Problem{Part: "mtu of " + l.Interface, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("the MTU of %s has become %d, and was %d: longer packets that hosts on its link send may be lost there without an answer", l.Interface, l.Now, l.Before),
			Fix:  fmt.Sprintf("ip link set %s mtu %d; or, if it is meant, give all hosts on the link the same MTU and restart %s, which loses no packet", l.Interface, l.Before, process)})
	}
	return found
}
