package engine

import (
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// Reports count while they are new, for backends that agents serve, by the affinity that is
// asked for.
func TestReportsOf(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	s := web(6)
	s.Mode = model.GUE
	nat := model.NAT
	s.Backends[3].Mode = &nat
	used := model.ReportedService{ServiceID: s.ID(), Affinity: s.Affinity, Used: model.NewSlotSet(1 << 14)}
	reports := map[model.HostAddress]model.AgentReport{}
	for i, taken := range []time.Time{at, at.Add(-2 * time.Minute), at.Add(time.Minute), at, at} {
		of := []model.ReportedService{used}
		if i == 4 {
			of[0].Affinity = model.AffinitySourceIP
		}
		b := s.Backends[i].Address
		reports[model.HostAddress{Address: b}] = model.AgentReport{Backend: b, Taken: taken, Services: of}
	}
	stranger := netip.MustParseAddr("192.0.2.99")
	reports[model.HostAddress{Address: stranger}] = model.AgentReport{Backend: stranger, Taken: at, Services: []model.ReportedService{used}}
	var e Evidence
	e.Renew(reports, true, at)
	reported := e.ReportsOf(&s, s.Affinity, at)
	for i, what := range []string{"counts", "is too old", "is of a clock that is ahead", "is of a backend of another mode", "is by another affinity", "is not there"} {
		if got := reported(s.Backends[i].Endpoint()); (got != nil) != (i == 0) {
			t.Errorf("a report that %s is taken for %v", what, got)
		}
	}
	if got := reported(netip.AddrPortFrom(stranger, 0)); got != nil {
		t.Errorf("of a stranger there is %v", got)
	}
}
