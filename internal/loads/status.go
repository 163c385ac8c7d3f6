package loads

import (
	"net/netip"

	"weir.io/weir/internal/model"
)

// Agents returns how many agents report.
func (b *Book) Agents() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.agents)
}

// Status returns a service's known loads, and what was reported about its backends; nil: it uses no
// reports.
func (b *Book) Status(id model.ServiceID) (*model.ServiceLoads, map[netip.AddrPort]*model.BackendLoad) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.services[id]
	if s == nil || !b.on {
		return nil, nil
	}
	now := b.clock()
	s.count(now)
	of := &model.ServiceLoads{Reported: s.fresh, Stale: s.stale, Degraded: s.degraded, Degradations: s.degradations}
	backends := map[netip.AddrPort]*model.BackendLoad{}
	for at, is := range s.backends {
		if !is.heard.IsZero() {
			backends[at] = &model.BackendLoad{
				Connections: is.load.Connections, Queue: is.load.Queue, Pressure: is.load.Pressure,
				Age: now.Sub(is.heard).Seconds(), Stale: !is.freshAt(now),
			}
		}
	}
	return of, backends
}
