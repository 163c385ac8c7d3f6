package engine

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// ReportsOf returns a function that says where agents have lately reported connections of a
// service, as slots of an affinity; nil: the backend's agent has not reported. Reports of backends
// in other modes do not count.
func (e *Evidence) ReportsOf(s *model.Service, affinity model.Affinity, now time.Time) func(netip.AddrPort) *model.ReportedService {
	e.mu.Lock()
	reports, latest := e.reports, e.latest // which are no longer written to
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
