package loads

import (
	"context"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// Sink has the loads of backends by which connections are placed: the datapath.
type Sink interface {
	// SetLoad sets a load, in parts of a connection (UnitsPerConnection). A lasting load stays
	// until the next one, plus what is placed there meanwhile; others fade. It reports whether the
	// backend is there.
	SetLoad(target model.Target, units uint32, lasts bool) bool
}

// UnitsPerConnection is LOAD_CONNECTION in bpf/abi/load_types.h, and unitsMost is LOAD_MOST.
const (
	UnitsPerConnection = 16
	unitsMost          = 1 << 30
)

// How long reports count, how often that is checked, and how long a service that is degraded stays
// so at least: each change is a new ring.
const (
	staleAfter = 3                      // of the agent's intervals
	staleLeast = 300 * time.Millisecond // a busy host is late
	lookEvery  = 50 * time.Millisecond
	restsFor   = time.Second
)

// Aggregator has the loads of the backends of services that are placed by load, and says whether enough
// of them are known.
type Aggregator struct {
	sink    Sink
	log     *slog.Logger
	changed chan struct{}
	clock   func() time.Time

	mu       sync.Mutex
	on       bool // agents should report
	services map[model.ServiceID]*service
	agents   map[uint64]time.Time // until when each agent counts as present, by its number without turnBits and lineBits
}

// service is a service that is placed by load.
type service struct {
	id           model.ServiceID
	name         string
	backends     map[netip.AddrPort]*backend
	degraded     bool
	since        time.Time // of that
	degradations uint64
	fresh, stale int // backends that may get connections, at the last look
}

// backend is a backend of a service.
type backend struct {
	weight uint16 // 0: it gets no new connections
	load   model.Load
	heard  time.Time // zero: never
	until  time.Time // the load counts
}

// NewAggregator returns an empty aggregator, which needs Run.
func NewAggregator(sink Sink, log *slog.Logger) *Aggregator {
	return &Aggregator{sink: sink, log: log, changed: make(chan struct{}, 1), clock: time.Now,
		services: map[model.ServiceID]*service{}, agents: map[uint64]time.Time{}}
}

// Run notices when reports stop, until the context ends.
func (a *Aggregator) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.look()
		}
	}
}

// Changed is sent to when what Degraded returns has changed.
func (a *Aggregator) Changed() <-chan struct{} { return a.changed }

// Degraded reports whether a service that is placed by load has too few reports.
func (a *Aggregator) Degraded(id model.ServiceID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.services[id]
	return a.on && s != nil && s.degraded
}

// Expect says whether agents should report at all. If not, nothing is degraded: connections are
// placed by what this director itself has opened.
func (a *Aggregator) Expect(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.on == on {
		return
	}
	a.on = on
	for _, s := range a.services {
		if !on && !s.degraded {
			a.level(s)
		}
		s.degraded, s.since = true, time.Time{}
	}
	a.notify()
}

// Follow replaces the services. A new one has no reports yet.
func (a *Aggregator) Follow(table []model.TableService) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := map[model.ServiceID]*service{}
	for i := range table {
		t := &table[i]
		if !t.Policy.ByLoad() {
			continue
		}
		id := t.ID()
		s := a.services[id]
		if s == nil {
			s = &service{id: id, degraded: true}
		}
		s.name = t.Name
		s.follow(t.Backends)
		next[id] = s
	}
	a.services = next
}

func (s *service) follow(backends []model.TableBackend) {
	next := make(map[netip.AddrPort]*backend, len(backends))
	for i := range backends {
		at := backends[i].Endpoint()
		is := s.backends[at]
		if is == nil {
			is = &backend{}
		}
		is.weight = 0
		if backends[i].State == model.Active {
			is.weight = backends[i].Weight
		}
		next[at] = is
	}
	s.backends = next
}

// Add takes what an agent says, and should say again after an interval.
func (a *Aggregator) Add(from uint64, interval time.Duration, loads []model.Load) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock()
	until := now.Add(max(staleAfter*interval, staleLeast))
	a.agents[from>>(turnBits+lineBits)] = until
	for _, l := range loads {
		s := a.services[l.Service]
		if s == nil || s.backends[l.Backend] == nil {
			continue // the agent's file is older, or newer; or the service asks for no loads
		}
		is := s.backends[l.Backend]
		is.load, is.heard, is.until = l, now, until
		if a.on && !s.degraded {
			a.sink.SetLoad(l.Target, units(&l), true)
		}
	}
}

// units is the load of a report. A connection that waits for the server counts twice. If some task
// waits for a CPU all of the time, everything counts twice, including the next connection.
func units(l *model.Load) uint32 {
	count := float64(l.Connections) + float64(l.Queue)
	all := UnitsPerConnection * (count + l.Pressure*(count+1))
	return uint32(min(math.Round(all), unitsMost))
}

// look finds out which services have enough reports now.
func (a *Aggregator) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock()
	for from, until := range a.agents {
		if now.After(until) {
			delete(a.agents, from)
		}
	}
	if !a.on {
		return
	}
	told := false
	for _, s := range a.services {
		s.count(now)
		enough := s.fresh > 0 && s.fresh >= s.stale
		switch {
		case !s.degraded && !enough:
			s.degraded, s.since = true, now
			s.degradations++
			a.level(s)
			a.log.Warn("too few loads are reported: connections are placed without", "service", s.name, "reported", s.fresh, "stale", s.stale)
			told = true
		case s.degraded && enough && now.Sub(s.since) >= restsFor:
			s.degraded, s.since = false, now
			a.put(s, now)
			a.log.Info("connections are placed by reported loads", "service", s.name, "reported", s.fresh, "stale", s.stale)
			told = true
		case !s.degraded && s.stale > 0:
			a.fill(s, now)
		}
	}
	if told {
		a.notify()
	}
}

func (s *service) count(now time.Time) {
	s.fresh, s.stale = 0, 0
	for _, is := range s.backends {
		switch {
		case is.weight == 0:
		case is.freshAt(now):
			s.fresh++
		default:
			s.stale++
		}
	}
}

func (b *backend) freshAt(now time.Time) bool { return !b.heard.IsZero() && !now.After(b.until) }

// put sets all loads as they are known now.
func (a *Aggregator) put(s *service, now time.Time) {
	for at, is := range s.backends {
		if is.freshAt(now) {
			a.sink.SetLoad(model.Target{Service: s.id, Backend: at}, units(&is.load), true)
		}
	}
	a.fill(s, now)
}

// fill gives backends without reports a load like those of the others, so that they get about their
// share.
func (a *Aggregator) fill(s *service, now time.Time) {
	mean := s.perWeight(func(is *backend) bool { return is.freshAt(now) })
	for at, is := range s.backends {
		if is.weight > 0 && !is.freshAt(now) {
			a.sink.SetLoad(model.Target{Service: s.id, Backend: at}, is.part(mean), true)
		}
	}
}

// level makes all loads alike: none is known any more. They fade, and then only what this director
// opens itself is compared.
func (a *Aggregator) level(s *service) {
	mean := s.perWeight(func(is *backend) bool { return !is.heard.IsZero() })
	for at, is := range s.backends {
		if is.weight > 0 {
			a.sink.SetLoad(model.Target{Service: s.id, Backend: at}, is.part(mean), false)
		}
	}
}

// perWeight is the mean load, in units, of the backends that get connections and are meant.
func (s *service) perWeight(means func(*backend) bool) float64 {
	var load, weight float64
	for _, is := range s.backends {
		if is.weight > 0 && means(is) {
			load += float64(units(&is.load))
			weight += float64(is.weight)
		}
	}
	if weight == 0 {
		return 0
	}
	return load / weight
}

func (b *backend) part(perWeight float64) uint32 {
	return uint32(min(math.Round(perWeight*float64(b.weight)), unitsMost))
}

// notify says that something has changed. The lock is held.
func (a *Aggregator) notify() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Agents returns how many agents report.
func (a *Aggregator) Agents() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.agents)
}

// Status returns a service's known loads, and what was reported about its backends; nil: it uses no
// reports.
func (a *Aggregator) Status(id model.ServiceID) (*model.ServiceLoads, map[netip.AddrPort]*model.BackendLoad) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.services[id]
	if s == nil || !a.on {
		return nil, nil
	}
	now := a.clock()
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
