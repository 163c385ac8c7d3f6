package desired

import (
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
	"weir.io/weir/lab/etcdlab"
)

// logOf returns the log of the group's only service.
func (m *member) logOf(t *testing.T) model.Log {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	documents := m.shared.Documents()
	if len(documents) != 1 {
		t.Fatalf("the group has %d services, want one", len(documents))
	}
	return documents[0].Log
}

// Directors keep a generation for as long as an agent reports a connection in it, far
// beyond drain, and have the same rows all the time. A director that starts does not take
// what it has not read yet for nothing.
func TestGroupTrimsByReports(t *testing.T) {
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	group := newGroup(t, c, 2)
	group[0].must()
	group[1].must()
	agents := openGroup(t, c, "", slog.New(slog.DiscardHandler))

	s := shared("a", 1, 3)
	s.Retention = model.Duration(200 * time.Millisecond)
	report := func(hashes ...uint64) {
		t.Helper()
		var reports []model.AgentReport
		for i, b := range s.Backends {
			of := model.ReportedService{ServiceID: s.ID(), Used: model.NewSlotSet(s.ReportRanges())}
			for _, hash := range hashes {
				if i == 0 {
					of.Note(hash)
				}
			}
			reports = append(reports, model.AgentReport{Backend: b.Address, Taken: time.Now(), Services: []model.ReportedService{of}})
		}
		if err := agents.PutReports(t.Context(), reports); err != nil {
			t.Fatal(err)
		}
	}
	put(t, group[0], "cli", s)
	// A slot of the backend that is going to drain: any that it owns in a ring of its own.
	ring := agree(t, group...).Services[0].Ring
	slot := 0
	for ring.Slots[slot].Owner != 0 {
		slot++
	}
	hash := (uint64(slot)<<1 + 1) << 31 / uint64(len(ring.Slots)) << 32
	report(hash)
	until(t, "the directors have the agents' reports", func() bool {
		return group[0].Agents().Reporting == 3 && group[1].Agents().Reporting == 3
	})
	drained := shared("a", 1, 3)
	drained.Retention = s.Retention
	drained.Backends[0].State = model.Draining
	put(t, group[1], "cli", drained)
	until(t, "only the slot of the connection is kept", func() bool {
		report(hash)
		log := group[0].logOf(t)
		return len(log.Generations) == 2 && history.Kept(log) == 1
	})
	agree(t, group...)
	if row := group[1].table().Services[0].Ring.Row(slot); len(row) < 2 {
		t.Errorf("the row of the connection's slot is %v, want two candidates", row)
	}
	group[1].stop()
	group[1].must()
	agree(t, group...)
	if kept := history.Kept(group[1].logOf(t)); kept != 1 {
		t.Errorf("after the start of a director %d slots are kept, want 1", kept)
	}
	until(t, "the generation leaves when its connection has ended", func() bool {
		report()
		return len(group[0].logOf(t).Generations) == 1
	})
	agree(t, group...)
	if n := group[0].Left()[history.Overdue] + group[1].Left()[history.Overdue]; n > 0 {
		t.Errorf("%d generations left at max-retention", n)
	}
}

// A report about an address in no segment, of an agent that knows none, is a tenant's backend's only if it is
// about a service of that.
func TestReportsThatNameNoSegment(t *testing.T) {
	tenant := model.Segment{Kind: model.SegmentVLAN, ID: 100}
	at := model.HostAddress{Segment: tenant, Address: netip.MustParseAddr("10.0.0.1")}
	s, other := shared("a", 1, 1), shared("b", 2, 1)
	s.Segment = tenant
	own := []model.ServiceID{s.ID()}
	about := func(segment model.Segment, services ...model.Service) *model.AgentReport {
		r := &model.AgentReport{Backend: at.Address, Segment: segment}
		for i := range services {
			r.Services = append(r.Services, model.ReportedService{ServiceID: services[i].ID()})
		}
		return r
	}
	for name, test := range map[string]struct {
		report *model.AgentReport
		want   bool
	}{
		"its own":                   {about(tenant), false},
		"about its service":         {about(model.Segment{}, s), false},
		"about its, and another":    {about(model.Segment{}, other, s), false},
		"about another service":     {about(model.Segment{}, other), true},
		"that is about no services": {about(model.Segment{}), true},
	} {
		if got := isOfAnother(at, test.report, own); got != test.want {
			t.Errorf("a report %s is another host's: %v, want %v", name, got, test.want)
		}
	}
}

// mayReport are reports of agents of which some are expected, or none, and none has reported.
type mayReport struct{ agents map[model.HostAddress]bool }

func (m mayReport) Latest(backends map[model.HostAddress]bool) (map[model.HostAddress]model.AgentReport, bool) {
	all := map[model.HostAddress]model.AgentReport{}
	for b := range backends {
		if m.agents[b] {
			all[b] = model.AgentReport{Backend: b.Address, Segment: b.Segment}
		}
	}
	return all, true
}
func (m mayReport) Signs() <-chan struct{} { return nil }
func (m mayReport) None() bool             { return len(m.agents) == 0 }

// A director to which no agent may report goes on with its logs as one that has no way to hear of them, from its start
// on. Where one may, what it may need stays until it reports.
func TestStartsWithoutReports(t *testing.T) {
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		for name, test := range map[string]struct {
			agents bool
			want   int // generations
		}{"no agent may report": {false, 1}, "one may": {true, 2}} {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s := func(backends int) model.Service {
					s := web("a", backends)
					s.Protocol, s.Mode = protocol, model.GUE
					return s
				}
				d := start(t, dir, nil)
				d.set(t, s(2))
				pass(time.Second)
				d.set(t, s(3))
				d.stop()
				pass(time.Minute)
				file, err := store.OpenFile(dir, store.OwnerFile)
				if err != nil {
					t.Fatal(err)
				}
				may := mayReport{agents: map[model.HostAddress]bool{}}
				if test.agents {
					for _, b := range s(3).Backends {
						may.agents[model.HostAddress{Address: b.Address}] = true
					}
				}
				d = startWith(t, file.Close, Deps{Local: file, Reports: may})
				defer d.stop()
				d.set(t, s(3))
				id := s(3)
				if got := d.engine.Report().LogStatus()[id.ID()]; got.Generations != test.want {
					t.Errorf("%v, %s: after the start there are %d generations, want %d", protocol, name, got.Generations, test.want)
				}
			})
		}
	}
}
