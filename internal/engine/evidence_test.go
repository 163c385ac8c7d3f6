package engine

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// reportedLife is a life of a service whose agents report: its connections live as long
// as they like, and reports come late, seldom, or not for a while.
type reportedLife struct {
	*lifeOfAService
	evidence Evidence
	reports  map[model.HostAddress]model.AgentReport
	ends     map[placed]time.Time
	outlived int // plans that a connection was looked for in more than drain after it began
	kept     int // slots, seen
}

func newReportedLife(t *testing.T, r *rand.Rand) *reportedLife {
	l := &reportedLife{lifeOfAService: newLife(t, r), reports: map[model.HostAddress]model.AgentReport{}, ends: map[placed]time.Time{}}
	l.service.Mode = model.GUE
	l.pace = livedDrain / time.Duration(1+r.IntN(6))
	return l
}

// report lets an agent say what connections it has now.
func (l *reportedLife) report(of model.Backend) {
	report := model.AgentReport{Backend: of.Address, Taken: l.now}
	for _, affinity := range model.UsualAffinities {
		s := model.ReportedService{ServiceID: l.service.ID(), Affinity: affinity, Used: model.NewSlotSet(1 << (6 + l.r.IntN(6)))}
		for connection, end := range l.ends {
			if connection.backend == of.Endpoint() && end.After(l.now) {
				s.Note(uint64(by(affinity, connection.hash)) << 32)
			}
		}
		report.Services = append(report.Services, s)
	}
	l.reports[report.At()] = report
}

func (l *reportedLife) trim() {
	held := history.Held{}
	for _, number := range l.held {
		held[number] = true
	}
	l.evidence.Renew(l.reports, true, l.now)
	log, left := history.Trim(l.log, &l.service, held, &l.evidence, l.now)
	for _, d := range left {
		if d.Cause == history.Overdue {
			l.t.Fatalf("generation %d left at max-retention", d.Number)
		}
	}
	l.log = history.Advance(log, &l.service, l.now)
}

func (l *reportedLife) step() {
	l.trim()
	c := config(l.service)
	table, report := l.planner.Plan(c, l.logs(), nil)
	l.held = report.Services[0].HeldAt
	l.holding += report.Services[0].Held
	l.kept += report.Services[0].Kept
	l.longest = max(l.longest, len(l.log.Generations))
	l.checkAlone(c, table, report)
	s := &table.Services[0]
	l.lookFor(s)
	if s.Before != nil {
		l.rehashed++
	}
	l.now = l.now.Add(time.Duration(l.r.Int64N(int64(l.pace))))
	for range 10 {
		hash := l.r.Uint32()
		row := rowOf(&s.Ring, by(s.Affinity, hash))
		if len(row) == 0 {
			continue
		}
		for _, b := range l.chosen(s, hash) {
			l.open(l.placed(l.log, hash, l.service.Backends[b].Endpoint()))
		}
		if len(row) > 1 && l.service.Backends[row[1]].Endpoint() == l.backup(l.log, l.hashed(hash)) {
			l.open(placed{hash, l.service.Backends[row[1]].Endpoint(), true})
		}
	}
	for _, b := range l.service.Backends {
		if _, has := l.reports[b.AddressIn(&l.service)]; !has || l.r.IntN(3) == 0 {
			l.report(b)
		}
	}
}

func (l *reportedLife) open(connection placed) {
	if _, has := l.ends[connection]; has {
		return
	}
	l.connections[connection] = l.now
	l.ends[connection] = l.now.Add(time.Duration(l.r.Int64N(int64(12 * livedDrain))))
}

// lookFor looks for every connection that has not ended in its row.
func (l *reportedLife) lookFor(s *model.TableService) {
	now, before := l.bounds()
	for connection, began := range l.connections {
		is := func(b model.Backend) bool { return b.Endpoint() == connection.backend }
		if !l.ends[connection].After(l.now) || !slices.ContainsFunc(l.service.Backends, is) {
			delete(l.connections, connection)
			delete(l.ends, connection)
			continue
		}
		if l.now.Sub(began) > livedDrain {
			l.outlived++
		}
		row, _ := candidatesOf(s, connection.hash, now, before)
		found := slices.ContainsFunc(row, func(b uint32) bool { return is(l.service.Backends[b]) })
		if !found && !connection.asBackup {
			l.t.Fatalf("a connection that began %v ago has lost its backend %v: the row is %v, the log\n%v",
				l.now.Sub(began), connection.backend, row, l.log)
		}
	}
}

// finish ends all connections, and looks at what is left of the log then.
func (l *reportedLife) finish() {
	clear(l.connections)
	clear(l.ends)
	for range 6 {
		l.now = l.now.Add(2 * livedDrain)
		for _, b := range l.service.Backends {
			l.report(b)
		}
		l.trim()
		_, report := l.planner.Plan(config(l.service), l.logs(), nil)
		l.held = report.Services[0].HeldAt
	}
	if l.held != nil {
		l.t.Fatalf("slots are held after all connections have ended: %v", l.log)
	}
	if n := len(l.log.Generations); n > 2 || n == 2 && len(l.log.Generations[0].Members) > 0 {
		l.t.Fatalf("all connections have ended, and the log has %d generations:\n%v", n, l.log)
	}
	if kept := history.Kept(l.log); kept > 0 {
		l.t.Errorf("all connections have ended, and %d slots are kept", kept)
	}
}

func TestConnectionsThatAreReportedKeepTheirBackend(t *testing.T) {
	held, longest, outlived, kept, rehashed := 0, 0, 0, 0, 0
	for seed := range uint64(40) {
		l := newReportedLife(t, rand.New(rand.NewPCG(6, seed)))
		for range 40 {
			for range l.r.IntN(3) {
				l.change()
			}
			l.step()
		}
		l.finish()
		held, longest, outlived, kept = held+l.holding, max(longest, l.longest), outlived+l.outlived, kept+l.kept
		rehashed += l.rehashed
		if t.Failed() {
			t.Fatal("seed", seed)
		}
	}
	if held == 0 || longest < 5 || outlived < 1000 || kept == 0 || rehashed == 0 {
		t.Errorf("the histories had %d slots held, at most %d generations, %d looks for connections older than drain, %d slots kept and %d plans with two affinities",
			held, longest, outlived, kept, rehashed)
	}
}

// moved returns a log of two generations, the older of which has placed its last connection.
func moved(t *testing.T, backends int) (s model.Service, log model.Log, at time.Time) {
	t.Helper()
	s = web(backends)
	s.Mode, s.Retention = model.GUE, model.Duration(livedDrain)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	log = history.Advance(model.Log{}, &s, begin)
	s.Backends[0].State = model.Draining
	return s, history.Advance(log, &s, begin), begin.Add(livedDrain)
}

// reportOf says that a backend of the service has one connection, or none.
func reportOf(s *model.Service, backend int, taken time.Time, hashes ...uint64) model.AgentReport {
	of := model.ReportedService{ServiceID: s.ID(), Affinity: s.Affinity, Used: model.NewSlotSet(s.ReportRanges())}
	for _, hash := range hashes {
		of.Note(hash)
	}
	return model.AgentReport{Backend: s.Backends[backend].Address, Taken: taken, Services: []model.ReportedService{of}}
}

func reportsOf(reports ...model.AgentReport) map[model.HostAddress]model.AgentReport {
	all := map[model.HostAddress]model.AgentReport{}
	for _, r := range reports {
		all[r.At()] = r
	}
	return all
}

func TestWhatCountsAsEvidence(t *testing.T) {
	s, log, at := moved(t, 3)
	drained := s.Backends[0].Endpoint()
	ring := makeRing(&log.Generations[1])
	owned, slot := 0, uint64(0)
	for i, owner := range ring.Owners {
		switch drained {
		case log.Generations[1].Members[owner].Backend:
			owned, slot = owned+1, uint64(i)
		case log.Generations[1].Members[ring.Backups[i]].Backend:
			owned++
		}
	}
	hash := (slot<<1 + 1) << 31 / uint64(len(ring.Owners)) << 32 // in the middle of the slot
	later := at.Add(time.Minute)
	others := []model.AgentReport{reportOf(&s, 1, later), reportOf(&s, 2, later)}
	otherService := reportOf(&s, 0, later)
	otherService.Services[0].VIP = netip.MustParseAddr("192.0.2.77")
	otherAffinity := reportOf(&s, 0, later)
	otherAffinity.Services[0].Affinity = model.AffinitySourceIP
	for name, test := range map[string]struct {
		drained []model.AgentReport
		known   bool
		kept    int // slots of the first generation; -1: it has left
	}{
		"nobody reports of it":           {nil, true, -1},
		"it is not known who reports":    {nil, false, owned},
		"no connection":                  {[]model.AgentReport{reportOf(&s, 0, at)}, true, -1},
		"a connection":                   {[]model.AgentReport{reportOf(&s, 0, at, hash)}, true, 1},
		"a report from before":           {[]model.AgentReport{reportOf(&s, 0, at.Add(-time.Nanosecond))}, true, owned},
		"a report from the future":       {[]model.AgentReport{reportOf(&s, 0, later.Add(time.Minute))}, true, owned},
		"a report of another service":    {[]model.AgentReport{otherService}, true, owned},
		"a report that hashes otherwise": {[]model.AgentReport{otherAffinity}, true, owned},
		"a report that nobody can read":  {[]model.AgentReport{{Backend: s.Backends[0].Address}}, true, owned},
	} {
		t.Run(name, func(t *testing.T) {
			var e Evidence
			e.Renew(reportsOf(slices.Concat(others, test.drained)...), test.known, later)
			trimmed, left := history.Trim(log, &s, nil, &e, later)
			if test.kept < 0 {
				if len(left) != 1 || left[0].Cause != history.Drained {
					t.Errorf("there left %v, want the first generation, drained", left)
				}
				return
			}
			if len(trimmed.Generations) != 2 {
				t.Fatalf("the log has %d generations, want both", len(trimmed.Generations))
			}
			if kept := trimmed.Generations[1].Kept.Count(); kept != test.kept {
				t.Errorf("%d slots are kept of %d that were the backend's, or could be, want %d", kept, owned, test.kept)
			}
		})
	}
}

func TestMaxDrainEndsWhatAgentsReport(t *testing.T) {
	s, log, at := moved(t, 3)
	s.MaxRetention = model.Duration(time.Hour)
	var e Evidence
	e.Renew(reportsOf(model.AgentReport{Backend: s.Backends[0].Address}), true, at)
	trimmed, _ := history.Trim(log, &s, nil, &e, at)
	if due, want := history.Due(trimmed, &s, nil, &e, at), at.Add(-livedDrain+time.Hour); !due.Equal(want) {
		t.Errorf("what a silent agent may need is due at %v, want max-retention: %v", due, want)
	}
	_, left := history.Trim(trimmed, &s, nil, &e, at.Add(time.Hour))
	if len(left) != 1 || left[0].Cause != history.Overdue {
		t.Errorf("at max-retention there left %v, want the first generation, overdue", left)
	}
}

// The clock alone decides about UDP where agents remember no flows: what they report is
// of other services.
func TestAgentsThatRememberNoFlows(t *testing.T) {
	s, log, at := moved(t, 3)
	s.Protocol = model.UDP
	var before Evidence
	before.Renew(reportsOf(reportOf(&s, 1, at)), true, at)
	log, _ = history.Trim(log, &s, nil, &before, at) // from here on new flows are the owners' alone
	at = at.Add(livedDrain)
	other := reportOf(&s, 0, at)
	other.Services[0].Protocol = model.TCP
	for name, test := range map[string]struct {
		report model.AgentReport
		left   int
	}{
		"remembers no flows":         {other, 1},
		"remembers a flow":           {reportOf(&s, 0, at, 1<<60, 2<<60, 3<<60, 5<<60, 7<<60, 9<<60, 11<<60, 13<<60), 0},
		"remembers none of these":    {reportOf(&s, 0, at), 1},
		"says nothing that is clear": {model.AgentReport{Backend: s.Backends[0].Address}, 0},
	} {
		var e Evidence
		e.Renew(reportsOf(test.report, reportOf(&s, 1, at), reportOf(&s, 2, at)), true, at)
		if _, left := history.Trim(log, &s, nil, &e, at); len(left) != test.left {
			t.Errorf("an agent that %s: %v left, want %d", name, left, test.left)
		}
	}
}

// The clock alone decides about modes without second chance.
func TestWhoReportsIsAsked(t *testing.T) {
	s, _, at := moved(t, 3)
	var e Evidence
	e.Renew(reportsOf(reportOf(&s, 0, at)), true, at)
	udp, ipip, other := s, s, s
	udp.Protocol, ipip.Mode = model.UDP, model.IPIP
	other.Backends = s.Backends[1:]
	for name, test := range map[string]struct {
		service *model.Service
		want    bool
	}{"gue": {&s, true}, "udp": {&udp, true}, "ipip": {&ipip, false}, "other backends": {&other, false}} {
		if got := e.Reported(test.service); got != test.want {
			t.Errorf("%s: agents report: %v, want %v", name, got, test.want)
		}
	}
	if status := e.Status(at.Add(2 * time.Minute)); status.Silent != 1 || status.Reporting != 0 {
		t.Errorf("two minutes after its last report an agent is %v, want it silent", status)
	}
}

// A generation that places connections again has all of its slots, in the rows before
// in the log.
func TestTheLastWithMembersIsWhole(t *testing.T) {
	s, log, at := moved(t, 2)
	var e Evidence
	e.Renew(reportsOf(reportOf(&s, 0, at, 0)), true, at)
	if table, _ := Plan(config(s), Logs{s.ID(): log}, nil); table.Services[0].Reported {
		t.Error("nobody has reported, and the table says so")
	}
	log, _ = history.Trim(log, &s, nil, &e, at)
	if kept := history.Kept(log); kept < 1 || kept > 2 {
		t.Fatalf("the first generation keeps %d slots for one connection", kept)
	}
	if table, _ := Plan(config(s), Logs{s.ID(): log}, nil); !table.Services[0].Reported {
		t.Error("the log keeps what agents report, and the table does not say so")
	}
	s.Backends = s.Backends[:1] // only the draining backend is left
	for range 2 {
		table, _ := Plan(config(s), Logs{s.ID(): log}, nil)
		for slot := range table.Services[0].Ring.Slots {
			if table.Services[0].Ring.Slots[slot].Owner == model.NoBackend {
				t.Fatalf("slot %d has nobody, although a backend is there:\n%v", slot, log)
			}
		}
		log, _ = history.Trim(log, &s, nil, &e, at)
		log = history.Advance(log, &s, at)
	}
}

// Two tenants have backends of the same addresses. What the agent of one says, and that the other's says
// nothing, decides about its own tenant's generations alone.
func TestTenantsReportApart(t *testing.T) {
	red, log, at := moved(t, 3)
	blue := red
	in := func(s *model.Service, id uint32) {
		s.Segment = model.Segment{Kind: model.SegmentVLAN, ID: id}
		s.Backends = slices.Clone(s.Backends)
		for i := range s.Backends {
			s.Backends[i].Segment = &s.Segment
		}
	}
	in(&red, 100)
	in(&blue, 200)
	report := func(s *model.Service, backend int, hashes ...uint64) model.AgentReport {
		r := reportOf(s, backend, at, hashes...)
		r.Segment = s.Segment
		return r
	}
	var everywhere []uint64
	for i := range uint64(1 << 14) {
		everywhere = append(everywhere, i<<50)
	}
	for name, of := range map[string]model.AgentReport{
		"has connections everywhere":  report(&blue, 0, everywhere...),
		"says nothing":                {Backend: blue.Backends[0].Address, Segment: blue.Segment},
		"speaks of the other's":       {Backend: blue.Backends[0].Address, Segment: blue.Segment, Taken: at, Services: report(&red, 0, everywhere...).Services},
		"is in no segment at all":     {Backend: blue.Backends[0].Address, Taken: at, Services: report(&red, 0, everywhere...).Services},
		"is ahead of the other's now": {Backend: blue.Backends[0].Address, Segment: blue.Segment, Taken: at.Add(time.Hour), Services: report(&red, 0, everywhere...).Services},
	} {
		var e Evidence
		e.Renew(reportsOf(of, report(&blue, 1), report(&blue, 2), report(&red, 0), report(&red, 1), report(&red, 2)), true, at)
		if _, left := history.Trim(log, &red, nil, &e, at); len(left) != 1 || left[0].Cause != history.Drained {
			t.Errorf("while the agent of the other tenant's backend %s there left %v, want the first generation, drained", name, left)
		}
	}
	var e Evidence
	e.Renew(reportsOf(report(&blue, 0, everywhere...), report(&blue, 1), report(&blue, 2)), true, at)
	if trimmed, _ := history.Trim(log, &blue, nil, &e, at); len(trimmed.Generations) != 2 {
		t.Error("a tenant's own connections keep nothing")
	}
	if got := e.Heard(&red)(red.Backends[0].Endpoint()); !got.Taken.IsZero() {
		t.Errorf("of a tenant without agents %v is heard", got)
	}
	if got := e.ReportsOf(&red, red.Affinity, at)(red.Backends[0].Endpoint()); got != nil {
		t.Errorf("a tenant without agents has the report %v", got)
	}
}
