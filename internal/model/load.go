package model

import (
	"net/netip"
	"slices"
	"time"
)

// Loads is how agents report the loads of backends to directors, for policies that go by them.
type Loads struct {
	KeyFile  string       `json:"key-file,omitempty"` // of keys that directors and agents share; empty: nobody reports
	Port     uint16       `json:"port,omitempty"`     // UDP, of directors
	Interval Duration     `json:"interval,omitzero"`  // of an agent, between two reports
	To       []netip.Addr `json:"to,omitempty"`       // directors; none: the single addresses in Config.Directors
}

// What reports are unless the configuration says otherwise, and what it may say.
const (
	DefaultLoadPort     = 6085
	DefaultLoadInterval = Duration(100 * time.Millisecond)
	minLoadInterval     = Duration(10 * time.Millisecond)
	maxLoadInterval     = Duration(time.Second)
	maxLoadDirectors    = 256
)

// Given reports whether agents report loads.
func (l *Loads) Given() bool { return l.KeyFile != "" }

// IsZero reports whether no key is given.
func (l Loads) IsZero() bool {
	return l.KeyFile == "" && l.Port == 0 && l.Interval == 0 && len(l.To) == 0
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
	if l.Port == 0 {
		l.Port = DefaultLoadPort
	}
	if l.Interval == 0 {
		l.Interval = DefaultLoadInterval
	}
}

// Load is what an agent says about a service on one backend, when it looked last.
type Load struct {
	Target
	Connections uint32  // TCP connections that its server has open
	Queue       uint32  // of these, those that wait in an accept queue
	Pressure    float64 // share of the time in which somebody there waited for a CPU, 0 to 1
}

// LoadStatus is what a director knows of the reports that come to it.
type LoadStatus struct {
	Listens  []netip.AddrPort `json:"listens"`           // where reports come to
	Problem  string           `json:"problem,omitempty"` // why they do not
	Agents   int              `json:"agents"`            // that report
	Messages []Tallied        `json:"messages"`          // by what became of them
}

// ServiceLoads is what a service has to go by that is placed by load.
type ServiceLoads struct {
	Reported int  `json:"reported"` // backends that may get connections, and whose load is known
	Stale    int  `json:"stale"`    // the same whose is not, or not any more
	Degraded bool `json:"degraded"` // too few are reported: new connections are placed without loads
	// Degradations is how often it has become so, since the director started.
	Degradations uint64 `json:"degradations"`
}

// BackendLoad is what was reported of a backend last.
type BackendLoad struct {
	Connections uint32  `json:"connections"` // that its server has open
	Queue       uint32  `json:"queue"`       // of these, in the accept queue
	Pressure    float64 `json:"pressure"`    // share of the time in which somebody waited for a CPU, 0 to 1
	Age         float64 `json:"age"`         // seconds since the report
	Stale       bool    `json:"stale"`       // too old to go by
}
