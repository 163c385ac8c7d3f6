package reports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

var (
	red, blue = model.Segment{Kind: model.SegmentVLAN, ID: 100}, model.Segment{Kind: model.SegmentVLAN, ID: 200}
	member    = netip.MustParseAddr("172.16.0.11")
	start     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// tenant is a service of a tenant with two backends in gue, whose addresses other tenants have, too.
func tenant(segment model.Segment, port uint16) model.Service {
	s := model.Service{Name: fmt.Sprint("web", port), Segment: segment, VIP: netip.MustParseAddr("172.16.0.100"), Protocol: model.TCP,
		Port: model.PortRange{First: port, Last: port}, Mode: model.GUE}
	for _, a := range []netip.Addr{member, member.Next()} {
		s.Backends = append(s.Backends, model.Backend{Name: a.String(), Address: a, Segment: &s.Segment, State: model.Active, Weight: 100})
	}
	return s
}

// lab is an Intake with two tenants' agents, which keeps in memory.
type lab struct {
	*Intake
	kept      *Memory
	services  []model.Service
	config    model.Config
	loads     []model.Load
	intervals []time.Duration
	at        time.Time
}

func newLab() *lab {
	l := &lab{kept: NewMemory(), at: start, services: []model.Service{tenant(red, 80), tenant(red, 81), tenant(blue, 80)}}
	nat := tenant(red, 82)
	nat.Mode = model.NAT
	other := tenant(red, 83)
	other.Backends = other.Backends[1:]
	l.services = append(l.services, nat, other)
	l.Intake = NewIntake(l.kept, false, func() []model.Service { return l.services }, l.take, slog.New(slog.DiscardHandler))
	l.now = func() time.Time { return l.at }
	l.config.Loads.API = true
	l.config.API.Clients = []model.APIClient{
		{Name: "red", Role: model.RoleAgent, Addresses: []netip.Addr{member}, Segment: red},
		{Name: "blue", Role: model.RoleAgent, Addresses: []netip.Addr{member}, Segment: blue},
		{Name: "ops", Role: model.RoleAdmin},
	}
	l.Follow(&l.config)
	return l
}

func (l *lab) take(_ uint64, interval time.Duration, loads []model.Load) {
	l.loads, l.intervals = append(l.loads, loads...), append(l.intervals, interval)
}

func (l *lab) client(segment model.Segment) *api.Reporter {
	return &api.Reporter{Name: map[model.Segment]string{red: "red", blue: "blue"}[segment], Segment: segment, V4: member}
}

// report is about services.
func (l *lab) report(segment model.Segment, about ...*model.Service) model.AgentReport {
	r := model.AgentReport{Backend: member, Segment: segment, Taken: l.at, Services: []model.ReportedService{}}
	for _, s := range about {
		for _, affinity := range model.UsualAffinities {
			of := model.ReportedService{ServiceID: s.ID(), Affinity: affinity, Used: model.NewSlotSet(s.ReportRanges())}
			of.Note(7 << 60)
			r.Services = append(r.Services, of)
		}
	}
	return r
}

func (l *lab) put(t *testing.T, from model.Segment, report any) error {
	t.Helper()
	text, is := report.([]byte)
	if !is {
		var err error
		if text, err = json.Marshal(report); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.PutReport(t.Context(), l.client(from), text)
	return err
}

// statusOf is that of a refusal; 0: it is none.
func statusOf(err error) int {
	if p := (*api.Problem)(nil); errors.As(err, &p) {
		return p.Status
	}
	return 0
}

// What an agent says of its own backend is kept, and says nothing about another tenant's of the same address.
func TestReportsAreKept(t *testing.T) {
	l := newLab()
	all := map[model.HostAddress]bool{{Segment: red, Address: member}: true, {Segment: blue, Address: member}: true, {Segment: red, Address: member.Next()}: true, {Address: member}: true}
	got, known := l.kept.Latest(all)
	silent := map[model.HostAddress]model.AgentReport{
		{Segment: red, Address: member}:  {Backend: member, Segment: red},
		{Segment: blue, Address: member}: {Backend: member, Segment: blue},
	}
	if !known || !reflect.DeepEqual(got, silent) {
		t.Errorf("before agents report it is said %v (%v), want that those that may say nothing yet", got, known)
	}
	report := l.report(red, &l.services[0], &l.services[1])
	report.Signals = []model.Signal{{ServiceID: l.services[0].ID(), Refused: 3}}
	if err := l.put(t, red, report); err != nil {
		t.Fatal(err)
	}
	silent[report.At()] = report
	if got, _ := l.kept.Latest(all); !reflect.DeepEqual(got, silent) {
		t.Errorf("it is said %v, want %v", got, silent)
	}
	select {
	case <-l.kept.Signs():
	default:
		t.Error("nobody is told of signs of strain")
	}
	may := l.Reportable(l.client(red))
	want := api.Reportable{Segment: red, Addresses: []netip.Addr{member}, Services: []model.ServiceID{l.services[0].ID(), l.services[1].ID()}, Time: start}
	if !reflect.DeepEqual(may, want) {
		t.Errorf("it may report %+v, want %+v", may, want)
	}
	var status model.ReporterStatus
	if l.Count(&status); status.Taken != 1 || status.Refused != 0 {
		t.Errorf("counted are %+v", status)
	}
	l.config.API.Clients = l.config.API.Clients[1:]
	l.Follow(&l.config)
	if got, _ := l.kept.Latest(all); len(got) != 1 || !got[model.HostAddress{Segment: blue, Address: member}].Taken.IsZero() {
		t.Errorf("after a client is gone it is said %v", got)
	}
}

// An agent that lies is refused with the reason, whatever it says, and changes neither what is known of its own backend
// nor of others.
func TestLiesAreRefused(t *testing.T) {
	l := newLab()
	truth, own := l.report(red, &l.services[0]), &l.services[0]
	if err := l.put(t, red, truth); err != nil {
		t.Fatal(err)
	}
	all := map[model.HostAddress]bool{{Segment: red, Address: member}: true, {Segment: blue, Address: member}: true, {Segment: red, Address: member.Next()}: true, {Address: member}: true}
	before, _ := l.kept.Latest(all)
	l.at = l.at.Add(time.Second)
	change := func(do func(*model.AgentReport)) model.AgentReport {
		r := l.report(red, own)
		do(&r)
		return r
	}
	signal := func(id model.ServiceID, refused float64) func(*model.AgentReport) {
		return func(r *model.AgentReport) {
			r.Signals = append(r.Signals, model.Signal{ServiceID: id, Refused: refused})
		}
	}
	for name, test := range map[string]struct {
		report any
		want   int
		says   string
	}{
		"of another address":   {change(func(r *model.AgentReport) { r.Backend = member.Next() }), 403, "red reports of 172.16.0.11 in vlan:100, and this is about 172.16.0.12 in vlan:100"},
		"of the other segment": {change(func(r *model.AgentReport) { r.Segment = blue }), 403, "and this is about 172.16.0.11 in vlan:200"},
		"of no segment":        {change(func(r *model.AgentReport) { r.Segment = model.Segment{} }), 403, "and this is about 172.16.0.11"},
		"of nobody":            {change(func(r *model.AgentReport) { r.Backend = netip.Addr{} }), 403, "and this is about"},
		"of IPv4 in IPv6":      {change(func(r *model.AgentReport) { r.Backend = netip.MustParseAddr("::ffff:172.16.0.11") }), 403, "and this is about"},
		"about the other's":    {l.report(red, own, &l.services[2]), 403, "172.16.0.11 in vlan:100 is no backend of such a service"},
		"about a nat service":  {l.report(red, &l.services[3]), 403, "no backend of such a service in mode gue"},
		"about one of others":  {l.report(red, &l.services[4]), 403, "about 172.16.0.100 tcp port 83 in vlan:100"},
		"with others' strain":  {change(signal(l.services[2].ID(), 9)), 403, "is no backend of such a service"},
		"with less than none":  {change(signal(own.ID(), -1)), 422, "signs of strain"},
		"with strain twice":    {change(func(r *model.AgentReport) { signal(own.ID(), 1)(r); signal(own.ID(), 2)(r) }), 422, "signs of strain"},
		"of the future":        {change(func(r *model.AgentReport) { r.Taken = l.at.Add(time.Hour) }), 422, "1h0m0s ahead of this director's clock"},
		"of the end of days":   {change(func(r *model.AgentReport) { r.Taken = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) }), 422, "ahead of"},
		"of long ago":          {change(func(r *model.AgentReport) { r.Taken = l.at.Add(-time.Hour) }), 422, "1h0m0s before this director's clock"},
		"of no time":           {change(func(r *model.AgentReport) { r.Taken = time.Time{} }), 422, "before this director's clock"},
		"sent a second time":   {change(func(r *model.AgentReport) { r.Taken = truth.Taken.Add(-time.Second) }), 409, "there is a later one"},
		"about one twice":      {l.report(red, own, own), 422, "says twice which connections"},
		"without ranges":       {[]byte(strings.Replace(string(encode(t, truth)), `"used":"`, `"unused":"`, 1)), 422, "has no ranges"},
		"of three ranges":      {change(func(r *model.AgentReport) { r.Services[0].Used = model.NewSlotSet(3) }), 422, "not a power of two"},
		"of more than memory":  {[]byte(`{"backend":"172.16.0.11","services":[` + strings.Repeat(`{"used":"1048576 gaps "},`, 200) + `{}]}`), 422, "more than"},
		"of objects":           {[]byte(`{"backend":"172.16.0.11","services":[` + strings.Repeat(`{},`, 5000) + `{}]}`), 422, "objects in"},
		"of a long address":    {change(func(r *model.AgentReport) { r.Backend = netip.MustParseAddr("fe80::1%" + strings.Repeat("a", 100000)) }), 403, "and this is about"},
		"about a long address": {change(func(r *model.AgentReport) {
			r.Services[0].VIP = netip.MustParseAddr("fe80::1%" + strings.Repeat("a", 100000))
		}), 403, "is no backend of such"},
		"in a long segment":     {[]byte(`{"backend":"172.16.0.11","segment":"` + strings.Repeat("a", 100000) + `"}`), 422, "cannot be read"},
		"deep":                  {[]byte(`{"backend":"172.16.0.11","x":` + strings.Repeat("[", 300000) + strings.Repeat("]", 300000) + `}`), 422, "cannot be read"},
		"of another kind":       {[]byte(`[1,2]`), 422, "cannot be read"},
		"of nothing":            {[]byte(``), 422, "cannot be read"},
		"and something else":    {append(encode(t, change(func(*model.AgentReport) {})), `{}`...), 422, "cannot be read"},
		"with a strange number": {[]byte(`{"backend":"172.16.0.11","signals":[{"refused":1e999}]}`), 422, "cannot be read"},
	} {
		err := l.put(t, red, test.report)
		if statusOf(err) != test.want || !strings.Contains(fmt.Sprint(err), test.says) {
			t.Errorf("a report %s: %v, want %d and %q", name, err, test.want, test.says)
		}
		if len(fmt.Sprint(err)) > 500 {
			t.Errorf("a report %s is answered with %d bytes", name, len(fmt.Sprint(err)))
		}
	}
	if after, _ := l.kept.Latest(all); !reflect.DeepEqual(after, before) {
		t.Errorf("it is said %v, and was %v", after, before)
	}
	if err := l.put(t, red, l.report(red, own)); err != nil {
		t.Errorf("after its lies an agent's report is refused: %v", err)
	}
}

func encode(t *testing.T, r model.AgentReport) []byte {
	t.Helper()
	text, err := json.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A report with more ranges than a service's rings need takes as much room as one with as many, and forgets no
// connection.
func TestReportsTakeNoMoreThanTheyNeed(t *testing.T) {
	l := newLab()
	r := l.report(red, &l.services[0])
	r.Services[0].Used = model.NewSlotSet(1 << 20)
	for hash := range uint64(100) {
		r.Services[0].Note(hash * hash << 48)
	}
	if err := l.put(t, red, r); err != nil {
		t.Fatal(err)
	}
	kept := l.kept.of[r.At()]
	if got, want := kept.Services[0].Used.Size(), l.services[0].ReportRanges(); got != want {
		t.Errorf("%d ranges are kept, want %d", got, want)
	}
	const slots = 4099
	for slot := range uint32(slots) {
		if r.Services[0].UsedIn(slot, slots) && !kept.Services[0].UsedIn(slot, slots) {
			t.Fatalf("slot %d has lost its connection", slot)
		}
	}
}

// An agent whose clock was wrong may report again when it is right.
func TestReportsAfterAWrongClock(t *testing.T) {
	l := newLab()
	r := l.report(red, &l.services[0])
	r.Taken = l.at.Add(24 * time.Hour) // by another way: in etcd anybody may write
	if err := l.kept.PutReports(t.Context(), []model.AgentReport{r}); err != nil {
		t.Fatal(err)
	}
	if err := l.put(t, red, l.report(red, &l.services[0])); err != nil {
		t.Errorf("after its clock was ahead an agent is refused: %v", err)
	}
}

// failing keeps nothing.
type failing struct{ *Memory }

func (failing) PutReports(context.Context, []model.AgentReport) error {
	return errors.New("etcd is away")
}

// A report that cannot be kept is no loss for ever: the agent is told to come again, or to ask another director.
func TestReportsThatAreNotKept(t *testing.T) {
	l := newLab()
	l.Intake = NewIntake(failing{l.kept}, true, func() []model.Service { return l.services }, l.take, slog.New(slog.DiscardHandler))
	l.now = func() time.Time { return l.at }
	l.Follow(&l.config)
	if err := l.put(t, red, l.report(red, &l.services[0])); statusOf(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), "etcd is away") {
		t.Errorf("it is refused with %v", err)
	}
	if !l.Reportable(l.client(red)).Shared {
		t.Error("an agent does not learn that all directors have its reports")
	}
}

// placed is a service that is placed by load, with a backend in the tenant's network.
func placed(segment model.Segment, port uint16, mode model.Mode) model.Service {
	s := tenant(segment, port)
	s.Mode, s.Policy = mode, model.LeastConn
	return s
}

// Loads are taken of an agent's own backend, in services that are placed by load, and only if they are asked for.
func TestLoadsAreTaken(t *testing.T) {
	l := newLab()
	l.services = append(l.services, placed(red, 90, model.NAT), placed(blue, 90, model.NAT), placed(red, 91, model.IPIP))
	l.Follow(&l.config)
	of := func(s *model.Service, backend int) api.LoadTarget {
		return api.LoadTarget{ServiceID: s.ID(), Backend: s.Backends[backend].Endpoint()}
	}
	n := len(l.services)
	own, other, another := of(&l.services[n-3], 0), of(&l.services[n-2], 0), of(&l.services[n-1], 0)
	if got := l.Reportable(l.client(red)).Loads; !reflect.DeepEqual(got, []api.LoadTarget{own, another}) {
		t.Errorf("an agent may report loads of %v, want %v and %v", got, own, another)
	}
	report := func(interval time.Duration, loads ...api.ReportedLoad) *api.LoadReport {
		return &api.LoadReport{Interval: model.Duration(interval), Loads: loads}
	}
	good := api.ReportedLoad{LoadTarget: own, Connections: 7, Queue: 2, Pressure: 0.5}
	if err := l.PutLoads(l.client(red), report(time.Second, good)); err != nil {
		t.Fatal(err)
	}
	want := []model.Load{{Target: model.Target{Service: own.ServiceID, Backend: own.Backend}, Connections: 7, Queue: 2, Pressure: 0.5}}
	if !reflect.DeepEqual(l.loads, want) || l.intervals[0] != time.Second {
		t.Errorf("taken are %v for %v, want %v", l.loads, l.intervals, want)
	}
	for name, test := range map[string]struct {
		loads *api.LoadReport
		want  int
	}{
		"of the other tenant's":                 {report(time.Second, api.ReportedLoad{LoadTarget: other}), 403},
		"of it beside its own":                  {report(time.Second, good, api.ReportedLoad{LoadTarget: other}), 403},
		"of another backend":                    {report(time.Second, api.ReportedLoad{LoadTarget: of(&l.services[n-3], 1)}), 403},
		"of a service that is placed by a ring": {report(time.Second, api.ReportedLoad{LoadTarget: of(&l.services[0], 0)}), 403},
		"twice":                                 {report(time.Second, good, good), 422},
		"of too much pressure":                  {report(time.Second, api.ReportedLoad{LoadTarget: own, Pressure: 1e9}), 422},
		"of less than no pressure":              {report(time.Second, api.ReportedLoad{LoadTarget: own, Pressure: -1}), 422},
	} {
		if err := l.PutLoads(l.client(red), test.loads); statusOf(err) != test.want {
			t.Errorf("loads %s: %v, want %d", name, err, test.want)
		}
	}
	if len(l.loads) != 1 {
		t.Errorf("of lies %v is taken", l.loads[1:])
	}
	for _, interval := range []time.Duration{-time.Hour, 1000 * time.Hour} {
		if err := l.PutLoads(l.client(red), report(interval, good)); err != nil {
			t.Error(err)
		}
	}
	if l.intervals[1] != 0 || l.intervals[2] != mostInterval {
		t.Errorf("loads count for %v", l.intervals[1:])
	}
	if taken, refused := l.CountLoads(); taken != 3 || refused != 7 {
		t.Errorf("counted are %d and %d", taken, refused)
	}
	l.config.Loads.API = false
	l.Follow(&l.config)
	if got := l.Reportable(l.client(red)).Loads; len(got) != 0 {
		t.Errorf("nobody asks for loads, and an agent may report %v", got)
	}
	if err := l.PutLoads(l.client(red), report(time.Second, good)); statusOf(err) != 403 {
		t.Errorf("loads that nobody asks for: %v", err)
	}
}

// FuzzReports: no text of an agent takes more memory than its length, or is kept as a report of another backend.
func FuzzReports(f *testing.F) {
	l := newLab()
	truth, err := json.Marshal(l.report(red, &l.services[0]))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(truth)
	f.Add([]byte(`{"backend":"172.16.0.11","segment":"vlan:100","taken":"2026-01-02T03:04:05Z","services":[{"used":"1048576 gaps "}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l := newLab()
		bound := memlab.Bound{PerByte: 300, AtLeast: 64 << 20}
		var err error
		bound.Check(t, len(text), func() { _, err = l.PutReport(t.Context(), l.client(red), text) })
		if len(fmt.Sprint(err)) > 500 {
			t.Fatalf("it is refused with %d bytes", len(fmt.Sprint(err)))
		}
		for at, r := range l.kept.of {
			if at != (model.HostAddress{Segment: red, Address: member}) || r.At() != at || r.Check() != nil {
				t.Fatalf("of %s there is %+v", at, r)
			}
			for i := range r.Services {
				if s := &r.Services[i]; s.ServiceID != l.services[0].ID() && s.ServiceID != l.services[1].ID() {
					t.Fatalf("it speaks of %v", s.ServiceID)
				}
			}
		}
	})
}
