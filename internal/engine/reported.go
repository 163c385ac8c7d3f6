package engine

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// ReportsOf returns what says where agents have reported connections of a service lately, as
// slots of an affinity; nil: the backend's agent has not. What backends in other modes report
// does not count.
func (e *Evidence) ReportsOf(s *model.Service, affinity model.Affinity, now time.Time) func(netip.AddrPort) *model.ReportedService {
	e.mu.Lock()
	reports, latest := e.reports, e.latest // which nobody writes to any more
	e.mu.Unlock()
	return func(b netip.AddrPort) *model.ReportedService {
		is := func(o model.Backend) bool { return o.Endpoint() == b && counts(s, o) }
		r, has := reports[b.Addr()]
		if !has || now.Sub(r.Taken) > silence || r.Taken.After(latest) || !slices.ContainsFunc(s.Backends, is) {
			return nil
		}
		return r.Of(s.ID(), affinity)
	}
}
