package model

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Loads is how agents report the loads of backends to directors, for policies that go by them.
type Loads struct {
	KeyFile  string       `json:"key-file,omitempty"` // of keys that directors and agents share; empty: agents do not report by UDP
	API      bool         `json:"api,omitempty"`      // agents that are clients of the API report by it
	Port     uint16       `json:"port,omitempty"`     // UDP, of directors
	Interval Duration     `json:"interval,omitzero"`  // of an agent, between two reports
	To       []netip.Addr `json:"to,omitempty"`       // directors; none: the single addresses in Config.Directors
}

// Defaults and bounds of reports.
const (
	DefaultLoadPort     = 6085
	DefaultLoadInterval = Duration(100 * time.Millisecond)
	minLoadInterval     = Duration(10 * time.Millisecond)
	maxLoadInterval     = Duration(time.Second)
	maxLoadDirectors    = 256
)

// Given reports whether agents report loads.
func (l *Loads) Given() bool { return l.KeyFile != "" || l.API }

// IsZero reports whether no key is given.
func (l Loads) IsZero() bool {
	return !l.Given() && l.Port == 0 && l.Interval == 0 && len(l.To) == 0
}

// LoadDirectors returns where agents send their reports: to each of these addresses.
func (c *Config) LoadDirectors() []netip.Addr {
	if len(c.Loads.To) > 0 {
		return c.Loads.To
	}
	var all []netip.Addr
	for _, p := range c.Directors {
		if p.IsSingleIP() {
			all = append(all, p.Addr())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func (l *Loads) setDefaults() {
	if l.IsZero() {
		return
	}
	l.Port, l.Interval = cmp.Or(l.Port, DefaultLoadPort), cmp.Or(l.Interval, DefaultLoadInterval)
}

// Load is what an agent says about a service on one backend, as of its last look.
type Load struct {
	Target
	Connections uint32  // TCP connections that its server has open
	Queue       uint32  // those of them that wait in an accept queue
	Pressure    float64 // share of the time in which some task there waited for a CPU, 0 to 1
}

// LoadStatus is what a director knows about the reports that come to it.
type LoadStatus struct {
	Listens  []netip.AddrPort `json:"listens"`           // where reports come to
	Problem  string           `json:"problem,omitempty"` // why they do not come
	Agents   int              `json:"agents"`            // that report
	Messages []Tallied        `json:"messages"`          // by what became of them
}

// ServiceLoads is what is known of the loads of a service that is placed by load.
type ServiceLoads struct {
	Reported int  `json:"reported"` // backends that may get connections, and whose load is known
	Stale    int  `json:"stale"`    // backends that may get connections, and whose load is not known, or no longer
	Degraded bool `json:"degraded"` // too few are reported: new connections are placed without loads
	// Degradations is how often the service has become degraded since the director started.
	Degradations uint64 `json:"degradations"`
}

// BackendLoad is what was last reported about a backend.
type BackendLoad struct {
	Connections uint32  `json:"connections"` // that its server has open
	Queue       uint32  `json:"queue"`       // those of them in the accept queue
	Pressure    float64 `json:"pressure"`    // share of the time in which some task waited for a CPU, 0 to 1
	Age         float64 `json:"age"`         // seconds since the report
	Stale       bool    `json:"stale"`       // too old to be used
}

// loads checks how loads are reported.
func (v *validation) loads() {
	l := &v.config.Loads
	if l.IsZero() {
		return
	}
	if !l.Given() {
		v.errs.add("loads.key-file", "is required, or api: true: who has its key is believed")
	}
	if l.API && !v.config.Agent.Store.Directors.Given() && len(v.config.API.Agents()) == 0 {
		v.errs.addWithOther("loads.api", "agent.store.directors", "needs agent.store.directors, where the agent reports to, or on a director api.clients with the role agent")
	}
	v.fromRoot("loads.key-file", l.KeyFile)
	v.duration("loads.interval", l.Interval, minLoadInterval, maxLoadInterval)
	if n := len(v.config.LoadDirectors()); n > maxLoadDirectors {
		v.errs.add("loads.to", "%d directors to report to are more than %d", n, maxLoadDirectors)
	}
	v.hosts("loads.to", l.To)
	if len(v.config.LoadDirectors()) == 0 && (l.KeyFile != "" || !l.API) {
		v.errs.addWithOther("loads.to", "directors", "is required: directors has no single address that reports could be sent to")
	}
}
