package engine

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

// Evidence judges by agents' reports in which slots connections may still need older generations,
// and, without agents, by what directors see whether any do. It implements history.Evidence.
//
// A backend without any report yet is judged as one without an agent: by the clock alone. So agents
// can be set up to report one after the other, and a log never waits for an agent that cannot
// report. An agent that has reported and stopped is different: its connections are unknown, and may
// need everything, until max-retention.
type Evidence struct {
	Guesses Guesses // of this director; nil: it does not look. It is not changed

	mu      sync.Mutex
	blind   bool // there may be reports that this director has not seen yet
	reports map[model.HostAddress]model.AgentReport
	latest  time.Time // the clock of a report from later than this is wrong
	rings   recentRings
	noRoom  bool
}

// Guesses is what the datapath sees of connections that no director remembers.
type Guesses interface {
	// LastGuess returns when any director of the group last found that such a connection of a
	// service belongs to an older generation's owner, or when this director began to look.
	LastGuess(id model.ServiceID) time.Time
}

// silence is the time without a report after which an agent counts as silent.
const silence = time.Minute

// Renew sets the reports to judge by, by their backends' addresses. While it is not known which reports exist,
// nothing that agents could report leaves before max-retention.
func (e *Evidence) Renew(reports map[model.HostAddress]model.AgentReport, known bool, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reports, e.blind, e.latest = reports, !known, now.Add(model.MostAhead)
	e.rings.age()
}

// Crowd says whether the rows of all generations that may be needed have no room: then no
// generation stays because of what directors see.
func (e *Evidence) Crowd(noRoom bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noRoom = noRoom
}

// Guessed returns when directors last saw a living connection of an older owner.
func (e *Evidence) Guessed(s *model.Service) time.Time {
	e.mu.Lock()
	noRoom := e.noRoom
	e.mu.Unlock()
	if e.Guesses == nil || noRoom || !isGuessed(s) {
		return time.Time{}
	}
	return e.Guesses.LastGuess(s.ID())
}

// isGuessed reports whether directors guess the backends of a service's unknown connections, and
// can tell that they were right: a datagram may be of a new flow.
func isGuessed(s *model.Service) bool {
	return s.Protocol == model.TCP && slices.ContainsFunc(s.Backends, func(b model.Backend) bool {
		mode := b.ModeIn(*s)
		return mode != model.GUE && (mode != model.NAT || !s.SNAT)
	})
}

// Status says how many backends have reports.
func (e *Evidence) Status(now time.Time) model.ReporterStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	var status model.ReporterStatus
	for _, r := range e.reports {
		if now.Sub(r.Taken) > silence {
			status.Silent++
		} else {
			status.Reporting++
		}
	}
	return status
}

// Reported reports whether some backend of the service has an agent that reports. Backends in other
// modes have no second chance.
func (e *Evidence) Reported(s *model.Service) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(s.Backends, func(b model.Backend) bool {
		_, has := e.reports[b.AddressIn(s)]
		return (has || e.blind) && counts(s, b)
	})
}

// counts reports whether what an agent says about a backend of a service counts.
func counts(s *model.Service, b model.Backend) bool {
	return b.ModeIn(*s) == model.GUE
}

// Needed returns the slots in which connections may need a generation.
func (e *Evidence) Needed(s *model.Service, g *model.Generation, newer []model.Generation, at time.Time) *model.SlotSet {
	e.mu.Lock()
	defer e.mu.Unlock()
	needed := model.NewSlotSet(int(g.Slots))
	for tier := range g.Tiers() {
		of := g.InTier(uint8(tier))
		e.neededIn(&of, s, newer, at, needed)
	}
	return needed
}

// neededIn adds the slots in which connections on a generation's members, all of one tier, may need it.
func (e *Evidence) neededIn(g *model.Generation, s *model.Service, newer []model.Generation, at time.Time, needed *model.SlotSet) {
	ring := e.rings.of(g)
	if len(ring.Owners) == 0 {
		return
	}
	says := e.says(s, g, at)
	by := e.namers(g, newer)
	spare := !placesOnBackups(g) // its backups need not be in rows
	for slot := range g.Slots {
		if !g.Kept.Has(int(slot)) {
			continue
		}
		owner, backup := ring.Owners[slot], ring.Backups[slot]
		if says[owner].usedIn(slot, g.Slots) && !by.name(slot, owner, false) ||
			backup != maglev.None && says[backup].usedIn(slot, g.Slots) && !by.name(slot, backup, spare) {
			needed.Add(int(slot))
		}
	}
}

// Heard returns a function that says what agents have last reported about a service's backends.
func (e *Evidence) Heard(s *model.Service) func(netip.AddrPort) model.Heard {
	e.mu.Lock()
	reports := e.reports // which are no longer written to
	e.mu.Unlock()
	id := s.ID()
	at := make(map[netip.AddrPort]model.HostAddress, len(s.Backends))
	for i := range s.Backends {
		at[s.Backends[i].Endpoint()] = s.Backends[i].AddressIn(s)
	}
	return func(b netip.AddrPort) model.Heard {
		r, has := reports[at[b]]
		if !has {
			return model.Heard{}
		}
		h := model.Heard{Taken: r.Taken}
		if at := slices.IndexFunc(r.Signals, func(s model.Signal) bool { return s.ServiceID == id }); at >= 0 {
			h.Signal = r.Signals[at]
		}
		return h
	}
}

// word is the report of a member's agent about a service.
type word struct {
	unknown bool // not known: there may be connections everywhere
	report  *model.ReportedService
}

func (w word) usedIn(slot, slots uint32) bool {
	return w.unknown || w.report != nil && w.report.UsedIn(slot, slots)
}

// says returns what is known about each member's connections that a generation may have placed
// until a time.
func (e *Evidence) says(s *model.Service, g *model.Generation, until time.Time) []word {
	words := make([]word, len(g.Members))
	for i, m := range g.Members {
		is := func(b model.Backend) bool { return b.Endpoint() == m.Backend && counts(s, b) }
		at := slices.IndexFunc(s.Backends, is)
		if at < 0 || slices.Contains(g.Gone, m.Backend) {
			continue
		}
		report, has := e.reports[s.Backends[at].AddressIn(s)]
		if !has {
			words[i] = word{unknown: e.blind}
			continue
		}
		of := report.Of(s.ID(), g.Affinity)
		if of == nil && s.Protocol.Datagrams() && len(report.Services) > 0 && !report.IsAbout(s.ID()) {
			continue // the agent remembers no flows
		}
		if of == nil || report.Taken.Before(until) || report.Taken.After(e.latest) {
			words[i] = word{unknown: true}
		} else {
			words[i] = word{report: of}
		}
	}
	return words
}

// namer is a newer generation, as an older one sees it.
type namer struct {
	ring      maglev.Generation
	both      bool // its backups are in every row, too
	kept      *model.SlotSet
	positions []uint32 // of the older one's members in it; None: not there, or gone
}

type namers []namer

// namers returns the newer generations that have the same slots.
func (e *Evidence) namers(g *model.Generation, newer []model.Generation) namers {
	var all namers
	for i := range newer {
		for tier := range newer[i].Tiers() {
			all = e.appendNamer(all, g, newer[i].InTier(uint8(tier)))
		}
	}
	return all
}

// appendNamer appends the members of a newer generation, all of one tier, if it has the same slots. Rows name backends of all
// tiers.
func (e *Evidence) appendNamer(all namers, g *model.Generation, n model.Generation) namers {
	if n.Slots != g.Slots || n.Affinity != g.Affinity || len(n.Members) == 0 {
		return all
	}
	positions := make([]uint32, len(g.Members))
	for j, m := range g.Members {
		positions[j] = maglev.None
		is := func(o model.Member) bool { return o.Backend == m.Backend }
		if at := slices.IndexFunc(n.Members, is); at >= 0 && !slices.Contains(n.Gone, m.Backend) {
			positions[j] = uint32(at)
		}
	}
	return append(all, namer{e.rings.of(&n), placesOnBackups(&n), n.Kept, positions})
}

// name reports whether one of the newer generations names a member of the older one in a slot: as
// its owner or, if any backup will do, as its backup. Rows always have the owners, and the backups
// of generations that place connections on backups; other backups only if there is room, newer
// generations' first.
func (n namers) name(slot, member uint32, backup bool) bool {
	for i := range n {
		position := n[i].positions[member]
		if position == maglev.None || !n[i].kept.Has(int(slot)) {
			continue
		}
		if n[i].ring.Owners[slot] == position || (backup || n[i].both) && n[i].ring.Backups[slot] == position {
			return true
		}
	}
	return false
}

// ReportsOf returns a function that says where agents have lately reported connections of a
// service, as slots of an affinity; nil: the backend's agent has not reported. Reports of backends
// in other modes do not count.
func (e *Evidence) ReportsOf(s *model.Service, affinity model.Affinity, now time.Time) func(netip.AddrPort) *model.ReportedService {
	e.mu.Lock()
	reports, latest := e.reports, e.latest // which are no longer written to
	e.mu.Unlock()
	return func(b netip.AddrPort) *model.ReportedService {
		is := func(o model.Backend) bool { return o.Endpoint() == b && counts(s, o) }
		at := slices.IndexFunc(s.Backends, is)
		if at < 0 {
			return nil
		}
		r, has := reports[s.Backends[at].AddressIn(s)]
		if !has || now.Sub(r.Taken) > silence || r.Taken.After(latest) {
			return nil
		}
		return r.Of(s.ID(), affinity)
	}
}
