// Package reports takes what agents on backends' hosts report by the API, each of its own backend alone, and keeps
// it for directors without an etcd.
package reports

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// Kept is where reports are kept: in the group's etcd, or in [Memory].
type Kept interface {
	PutReports(ctx context.Context, reports []model.AgentReport) error
	// LastReport returns when the last report about a backend was taken, if that is known here.
	LastReport(of model.HostAddress) time.Time
}

// oldest is the age at which a report is refused: it says where connections were, and its agent's clock is wrong,
// or it comes a second time.
const oldest = time.Minute

// lookEvery is how long the services that a backend has are not looked for again: there may be a million
// backends.
const lookEvery = time.Second

// warnEvery is the least time between two warnings about one client.
const warnEvery = 10 * time.Minute

// Intake takes the reports of agents that are clients of the API. Their hosts may be tenants': a report is believed
// about its agent's own backend, in the services of which that is one, and nothing else.
type Intake struct {
	kept     Kept
	shared   bool // kept comes to all directors of the group
	services func() []model.Service
	log      *slog.Logger
	now      func() time.Time

	reading sync.Mutex // is held while a report is read: a short text may take much memory

	loads LoadSink

	mu      sync.Mutex
	takes   bool                                          // loads
	agents  map[model.HostAddress]bool                    // of which clients may report
	targets map[model.HostAddress]map[model.Target]bool   // whose loads count
	of      map[model.HostAddress]map[model.ServiceID]int // ranges of the services that each is a backend of, in mode gue
	looked  time.Time
	at      map[netip.Addr]bool             // the agents' addresses, in whichever segment
	last    map[model.HostAddress]time.Time // when the last report was taken
	warned  map[string]time.Time            // by client
	taken   uint64
	refused uint64

	loadsTaken, loadsRefused uint64
}

// LoadSink takes the loads that an agent reports, by its number, and should report again after an interval.
type LoadSink func(from uint64, interval time.Duration, loads []model.Load)

// NewIntake returns an Intake that expects no agent yet. services returns those that run.
func NewIntake(kept Kept, shared bool, services func() []model.Service, loads LoadSink, log *slog.Logger) *Intake {
	return &Intake{kept: kept, shared: shared, services: services, loads: loads, log: log, now: time.Now, last: map[model.HostAddress]time.Time{}, warned: map[string]time.Time{}}
}

// Follow sets which agents may report, and whether their loads are taken.
func (i *Intake) Follow(c *model.Config) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.takes = c.Loads.API
	i.agents, i.looked, i.at = c.API.Agents(), time.Time{}, map[netip.Addr]bool{}
	for at := range i.agents {
		i.at[at.Address] = true
	}
	for at := range i.last {
		if !i.agents[at] {
			delete(i.last, at)
		}
	}
	clear(i.warned)
	if memory, is := i.kept.(interface {
		Expect(map[model.HostAddress]bool)
	}); is {
		memory.Expect(i.agents)
	}
}

// Count adds what became of reports.
func (i *Intake) Count(to *model.ReporterStatus) {
	i.mu.Lock()
	defer i.mu.Unlock()
	to.Taken, to.Refused = i.taken, i.refused
}

// servicesOf returns the services that an agent's backend is one of, in mode gue, and the ranges of each. The lock is held.
func (i *Intake) servicesOf(at model.HostAddress) map[model.ServiceID]int {
	i.look()
	return i.of[at]
}

// targetsOf returns the services placed by load that an agent's backend is one of. The lock is held.
func (i *Intake) targetsOf(at model.HostAddress) map[model.Target]bool {
	i.look()
	return i.targets[at]
}

// look finds out what agents may report, if it was not lately found. The lock is held.
func (i *Intake) look() {
	if now := i.now(); i.looked.IsZero() || now.Sub(i.looked) >= lookEvery || now.Before(i.looked) {
		i.looked, i.of, i.targets = now, map[model.HostAddress]map[model.ServiceID]int{}, map[model.HostAddress]map[model.Target]bool{}
		services := i.services()
		for j := range services {
			i.index(&services[j])
		}
	}
}

func (i *Intake) index(s *model.Service) {
	for k := range s.Backends {
		b := &s.Backends[k]
		if !i.at[b.Address] || b.Host.IsValid() { // most are no agent's that may report here
			continue
		}
		at := b.AddressIn(s)
		if !i.agents[at] {
			continue
		}
		if i.takes && s.Protocol == model.TCP && s.Policy.ByLoad() {
			if i.targets[at] == nil {
				i.targets[at] = map[model.Target]bool{}
			}
			i.targets[at][model.Target{Service: s.ID(), Backend: b.Endpoint()}] = true
		}
		if b.ModeIn(*s) != model.GUE {
			continue
		}
		if i.of[at] == nil {
			i.of[at] = map[model.ServiceID]int{}
		}
		i.of[at][s.ID()] = s.ReportRanges()
	}
}

// Reportable says what an agent may report.
func (i *Intake) Reportable(of *api.Reporter) api.Reportable {
	i.mu.Lock()
	defer i.mu.Unlock()
	may := api.Reportable{Segment: of.Segment, Shared: i.shared, Time: i.now().UTC()}
	seen := map[model.ServiceID]bool{}
	for _, at := range of.At() {
		may.Addresses = append(may.Addresses, at.Address)
		for id := range i.servicesOf(at) {
			if !seen[id] {
				seen[id], may.Services = true, append(may.Services, id)
			}
		}
	}
	for _, at := range of.At() {
		for target := range i.targetsOf(at) {
			may.Loads = append(may.Loads, api.LoadTarget{ServiceID: target.Service, Backend: target.Backend})
		}
	}
	slices.SortFunc(may.Services, compare)
	slices.SortFunc(may.Loads, func(a, b api.LoadTarget) int {
		return cmp.Or(compare(a.ServiceID, b.ServiceID), a.Backend.Compare(b.Backend))
	})
	return may
}

func compare(a, b model.ServiceID) int {
	return cmp.Or(a.Segment.Compare(b.Segment), a.VIP.Compare(b.VIP), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port.First, b.Port.First), cmp.Compare(a.Port.Last, b.Port.Last))
}

// called is how a service is called in errors: reports do not have its name.
func called(id *model.ServiceID) string {
	text := fmt.Sprintf("%s %s port %s", id.VIP, id.Protocol, id.Port)
	if id.Segment != (model.Segment{}) {
		text += " in " + id.Segment.String()
	}
	return model.Shown(text)
}

// PutReport takes a report from its text.
func (i *Intake) PutReport(ctx context.Context, from *api.Reporter, text []byte) (answer api.PutReport, err error) {
	report, err := i.read(from, text)
	if err == nil {
		if err = i.kept.PutReports(ctx, []model.AgentReport{report}); err != nil {
			err = api.NewProblem(http.StatusServiceUnavailable, fmt.Sprintf("the report is not kept: %v", err))
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		i.refused++
		i.warn(from, "an agent's report is refused", err)
		return answer, err
	}
	i.taken++
	return api.PutReport{Shared: i.shared}, nil
}

// mostInterval is how long the loads of an agent count, in thirds.
const mostInterval = 10 * time.Second / 3

// PutLoads takes the loads of an agent's backend. An agent that lies gets more or fewer of its own services'
// connections.
func (i *Intake) PutLoads(from *api.Reporter, report *api.LoadReport) error {
	loads, err := i.ownLoads(from, report)
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		i.loadsRefused++
		i.warn(from, "an agent's loads are refused", err)
		return err
	}
	i.loadsTaken++
	number := fnv.New64a()
	_, _ = number.Write([]byte(from.Name))
	i.loads(number.Sum64(), min(max(time.Duration(report.Interval), 0), mostInterval), loads)
	return nil
}

func (i *Intake) ownLoads(from *api.Reporter, report *api.LoadReport) (loads []model.Load, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	own := map[model.Target]bool{}
	for _, at := range from.At() {
		maps.Copy(own, i.targetsOf(at))
	}
	for j := range report.Loads {
		l := &report.Loads[j]
		target := model.Target{Service: l.ServiceID, Backend: l.Backend}
		if unsaid, is := own[target]; !is {
			return nil, problem(http.StatusForbidden, "of %s as a backend of %s no loads are taken from %s: it has that backend not, or the service is not placed by load", model.Shown(l.Backend.String()), called(&l.ServiceID), from.Name)
		} else if !unsaid {
			return nil, problem(http.StatusUnprocessableEntity, "the load of %s as a backend of %s is said twice", l.Backend, called(&l.ServiceID))
		}
		own[target] = false
		if !(l.Pressure >= 0 && l.Pressure <= 1) {
			return nil, problem(http.StatusUnprocessableEntity, "pressure is a share, from 0 to 1")
		}
		loads = append(loads, model.Load{Target: target, Connections: l.Connections, Queue: l.Queue, Pressure: l.Pressure})
	}
	return loads, nil
}

// CountLoads returns what became of reports of loads.
func (i *Intake) CountLoads() (taken, refused uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.loadsTaken, i.loadsRefused
}

// warn logs a refusal, of one client not often. The lock is held.
func (i *Intake) warn(from *api.Reporter, what string, err error) {
	if now := i.now(); now.Sub(i.warned[from.Name]) >= warnEvery {
		i.warned[from.Name] = now
		i.log.Warn(what, "client", from.Name, "error", err)
	}
}

func problem(status int, format string, args ...any) error {
	return api.NewProblem(status, fmt.Sprintf(format, args...))
}

// read reads a report, and returns it as it is kept.
func (i *Intake) read(from *api.Reporter, text []byte) (report model.AgentReport, err error) {
	i.reading.Lock()
	defer i.reading.Unlock()
	if err := json.Unmarshal(text, &report); err != nil {
		return report, problem(http.StatusUnprocessableEntity, "the report cannot be read: %s", model.Shown(err.Error()))
	}
	if !slices.Contains(from.At(), report.At()) {
		return report, problem(http.StatusForbidden, "%s reports of %s, and this is about %s", from.Name, describe(from), model.Shown(report.At().String()))
	}
	if err := report.Check(); err != nil {
		return report, problem(http.StatusUnprocessableEntity, "%v", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.inTime(&report); err != nil {
		return report, err
	}
	if err := bound(&report, i.servicesOf(report.At())); err != nil {
		return report, err
	}
	i.last[report.At()] = report.Taken
	return report, nil
}

// describe names the backend that an agent reports of.
func describe(from *api.Reporter) string {
	text := ""
	for _, at := range from.At() {
		if text != "" {
			text += " and "
		}
		text += at.String()
	}
	return text
}

// inTime refuses a report whose time cannot be right, and one that was overtaken. The lock is held.
func (i *Intake) inTime(r *model.AgentReport) error {
	now := i.now()
	switch ahead := r.Taken.Sub(now); {
	case ahead > model.MostAhead:
		return problem(http.StatusUnprocessableEntity, "the report is from %s, %v ahead of this director's clock: let both hosts follow the same time servers", r.Taken.UTC().Format(time.RFC3339), ahead.Round(time.Second))
	case ahead < -oldest:
		return problem(http.StatusUnprocessableEntity, "the report is from %s, %v before this director's clock: let both hosts follow the same time servers", r.Taken.UTC().Format(time.RFC3339), -ahead.Round(time.Second))
	}
	for _, last := range []time.Time{i.last[r.At()], i.kept.LastReport(r.At())} {
		if r.Taken.Before(last) && last.Sub(now) <= model.MostAhead { // else the clock was wrong then
			return problem(http.StatusConflict, "the report is from %s, and there is a later one", r.Taken.UTC().Format(time.RFC3339Nano))
		}
	}
	return nil
}

// bound refuses what a report says of other services than its backend's, and what it says twice, and lets it take no
// more room than the services' own rings need: wider ranges forget no connection.
func bound(r *model.AgentReport, services map[model.ServiceID]int) error {
	type place struct {
		id       model.ServiceID
		affinity model.Affinity
	}
	seen := map[place]bool{}
	for j := range r.Services {
		s := &r.Services[j]
		ranges, is := services[s.ServiceID]
		if !is {
			return notOf(r, &s.ServiceID)
		}
		if at := (place{s.ServiceID, s.Affinity}); seen[at] {
			return problem(http.StatusUnprocessableEntity, "the report says twice which connections there are of %s by affinity %v", called(&s.ServiceID), s.Affinity)
		}
		seen[place{s.ServiceID, s.Affinity}] = true
		for s.Used.Size() > ranges {
			s.Used = s.Used.Halved()
		}
	}
	signals := map[model.ServiceID]bool{}
	for j := range r.Signals {
		s := &r.Signals[j]
		if _, is := services[s.ServiceID]; !is {
			return notOf(r, &s.ServiceID)
		}
		if signals[s.ServiceID] || !isRate(s.Refused) || !isRate(s.Overflows) {
			return problem(http.StatusUnprocessableEntity, "the report has signs of strain of %s twice, or none that can be", called(&s.ServiceID))
		}
		signals[s.ServiceID] = true
	}
	return nil
}

func isRate(f float64) bool { return f >= 0 && !math.IsInf(f, 1) }

func notOf(r *model.AgentReport, id *model.ServiceID) error {
	return problem(http.StatusForbidden, "the report is about %s, and %s is no backend of such a service in mode gue", called(id), r.At())
}

// Memory keeps the reports of a director without an etcd, as long as its process lives.
type Memory struct {
	signs chan struct{}

	mu       sync.Mutex
	expected map[model.HostAddress]bool
	of       map[model.HostAddress]model.AgentReport
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory {
	return &Memory{signs: make(chan struct{}, 1), of: map[model.HostAddress]model.AgentReport{}}
}

// Expect sets which agents may report: of backends of others there is nothing.
func (m *Memory) Expect(agents map[model.HostAddress]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expected = agents
	for at := range m.of {
		if !agents[at] {
			delete(m.of, at)
		}
	}
}

// errRemoved says that a client has just left the configuration.
var errRemoved = errors.New("no client reports of this backend any more")

// PutReports keeps reports, in place of earlier ones about the same backends.
func (m *Memory) PutReports(_ context.Context, reports []model.AgentReport) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range reports {
		at := reports[i].At()
		if !m.expected[at] {
			return errRemoved
		}
		if len(reports[i].Signals)+len(m.of[at].Signals) > 0 {
			select {
			case m.signs <- struct{}{}:
			default:
			}
		}
		m.of[at] = reports[i]
	}
	return nil
}

// LastReport returns when the last report about a backend was taken.
func (m *Memory) LastReport(of model.HostAddress) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[of].Taken
}

// Latest returns the last report about each of these backends. An agent that may report and has not done so since this
// process began may have connections anywhere, as one that is silent.
func (m *Memory) Latest(backends map[model.HostAddress]bool) (reports map[model.HostAddress]model.AgentReport, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	reports = map[model.HostAddress]model.AgentReport{}
	for b := range backends {
		if r, has := m.of[b]; has {
			reports[b] = r
		} else if m.expected[b] {
			reports[b] = model.AgentReport{Backend: b.Address, Segment: b.Segment}
		}
	}
	return reports, true
}

// None reports whether there are no reports: no agent may make any.
func (m *Memory) None() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.expected) == 0
}

// Signs is sent to when there is a report with signs of strain, or the first one without any.
func (m *Memory) Signs() <-chan struct{} { return m.signs }
