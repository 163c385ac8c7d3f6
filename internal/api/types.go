// Package api is what a running director or agent can be asked: HTTP and JSON over a unix
// socket, the server and the client.
package api

import (
	"time"

	"weir.io/weir/internal/model"
)

// Where a director and an agent listen by default.
const (
	DefaultSocket      = "/run/weir/director.sock"
	DefaultAgentSocket = "/run/weir/agent.sock"
)

// Datapath is where packet counters and the kernel's view come from.
type Datapath interface {
	Status() (model.DatapathStatus, error)
}

// Agent is where an agent's counters come from.
type Agent interface {
	Status() (model.AgentStatus, error)
}

// Daemon is the process that runs the director or the agent.
type Daemon interface {
	// Config returns the configuration that runs, with its defaults.
	Config() model.Config
	// Info returns what the process knows about itself.
	Info() Info
}

// Role is what a process answers as.
type Role string

// The roles.
const (
	RoleDirector Role = "director"
	RoleAgent    Role = "agent" // on a backend's host
)

// Info is what a director's or agent's process knows about itself.
type Info struct {
	Version string    `json:"version"`
	Host    string    `json:"host"` // name of the host, as the kernel has it
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Pin     string    `json:"pin"`     // directory of the pinned programs and maps, which go on without the process
	File    string    `json:"file"`    // of the configuration
	Applied time.Time `json:"applied"` // when the last version of that configuration began to run; zero: none has
	// Changed is when what runs changed last, by a version of the file or otherwise: by a set, a drain,
	// checks, loads or this host.
	Changed time.Time `json:"changed"`
	// Refused has, in words, the problems because of which what runs is not what was asked for;
	// empty: it is.
	Refused string `json:"refused,omitempty"`
	// Problems are what was asked for and does not run.
	Problems []model.Problem `json:"problems"`
	// Revision is the revision of the group's state that is followed; 0: there is no group.
	Revision uint64 `json:"revision,omitempty"`
}

// Status is what a director says about itself: the answer to GET /v1/status.
type Status struct {
	Role       Role `json:"role"` // RoleDirector
	Info       `json:",inline"`
	Interfaces []model.InterfaceStatus `json:"interfaces"`
	Services   int                     `json:"services"` // in the kernel
	Backends   int                     `json:"backends"` // in the kernel, once per service
	RingMemory uint64                  `json:"ring-memory"`
	Limits     model.Limits            `json:"limits"`
	Flows      model.FlowStatus        `json:"flows"`
	NAT        *model.NATStatus        `json:"nat,omitempty"`
	Steering   *model.SteeringStatus   `json:"steering,omitempty"`
	FanOut     *model.FanOutStatus     `json:"fan-out,omitempty"`
	QUIC       []model.Tallied         `json:"quic"`
	Asks       []model.Tallied         `json:"asks"`
	Left       []model.Tallied         `json:"generations-left"`
	Agents     model.ReporterStatus    `json:"agents"`
	Loads      *model.LoadStatus       `json:"loads,omitempty"`
	Peers      []model.PeerStatus      `json:"peers,omitempty"`
	Capture    model.CaptureStatus     `json:"capture"`
	Hooks      []model.HookStatus      `json:"hooks,omitempty"`
	Strangers  uint64                  `json:"strangers"`
	Neighbor   model.NeighborStatus    `json:"neighbor,omitzero"`
	Probes     []model.Tallied         `json:"probes"`              // of backends' health, by their results
	Overrides  []model.BackendOverride `json:"overrides,omitempty"` // states of backends that override the director's file
	Panic      []string                `json:"panic"`               // services that use all backends to which there is a way, too few being healthy by their checks
	CPUs       []model.CPUStatus       `json:"cpus"`
	Upkeep     []model.Upkeep          `json:"upkeep,omitempty"` // parts of the host that the director maintains
	OVN        *model.OVNStatus        `json:"ovn,omitempty"`    // that says where hosts of tenants' networks are

	HostSources []model.HostSourceStatus `json:"host-sources,omitempty"` // what says where hosts of tenants' networks are, besides the configuration
	Reasons     []model.Counter          `json:"reasons"`
}

// Backend is a backend with its service: an element of GET /v1/backends.
type Backend struct {
	Service             string `json:"service"`
	model.BackendStatus `json:",inline"`
}

// AgentStatus is what an agent says about itself: its answer to GET /v1/status.
type AgentStatus struct {
	Role              Role `json:"role"` // RoleAgent
	Info              `json:",inline"`
	model.AgentStatus `json:",inline"`
}

// newStatus combines what the process and the kernel say.
func newStatus(daemon Daemon, d model.DatapathStatus) Status {
	s := Status{
		Role:       RoleDirector,
		Info:       daemon.Info(),
		Interfaces: orEmpty(d.Interfaces),
		Services:   len(d.Services),
		RingMemory: d.RingMemory,
		Limits:     d.Limits,
		Flows:      d.Flows,
		NAT:        d.NAT,
		Steering:   d.Steering,
		FanOut:     d.FanOut,
		QUIC:       orEmpty(d.QUIC),
		Asks:       orEmpty(d.Asks),
		Left:       orEmpty(d.Left),
		Agents:     d.Agents,
		Loads:      d.Loads,
		Peers:      d.Peers,
		Capture:    d.Capture,
		Hooks:      d.Hooks,
		Strangers:  d.Strangers,
		Neighbor:   d.Neighbor,
		Probes:     orEmpty(d.Probes),
		Panic:      []string{},
		CPUs:       orEmpty(d.CPUs),
		Upkeep:     d.Upkeep,
		OVN:        d.OVN,

		HostSources: d.HostSources,
		Reasons:     orEmpty(d.Reasons),
	}
	s.Flows.Events = orEmpty(s.Flows.Events)
	for _, service := range d.Services {
		s.Backends += len(service.Backends)
		for i := range service.Backends {
			if b := &service.Backends[i]; b.Override != nil {
				s.Overrides = append(s.Overrides, model.BackendOverride{Service: service.Name, Backend: b.Name, Address: b.Address, Override: *b.Override})
			}
		}
		if service.Health != nil && service.Health.Panic {
			s.Panic = append(s.Panic, service.Name)
		}
	}
	return s
}

// limitedStatus is what a caller of some segments may know: their services, and what is wrong with them.
func limitedStatus(daemon Daemon, d model.DatapathStatus, v view) Status {
	info := daemon.Info()
	only := model.DatapathStatus{Services: v.ofServices(d.Services)}
	for _, c := range v.ofCounts(d.Segments) {
		only.RingMemory += c.RingMemory
		only.Flows.Remembered += c.Flows
	}
	s := newStatus(daemon, only)
	s.Info = Info{Version: info.Version, Problems: orEmpty(v.ofProblems(info.Problems))}
	s.Interfaces = []model.InterfaceStatus{}
	return s
}

// newAgentStatus combines what the process and the kernel say.
func newAgentStatus(daemon Daemon, a model.AgentStatus) AgentStatus {
	a.Interfaces, a.VIPs = orEmpty(a.Interfaces), orEmpty(a.VIPs)
	a.Reasons, a.Services = orEmpty(a.Reasons), orEmpty(a.Services)
	return AgentStatus{Role: RoleAgent, Info: daemon.Info(), AgentStatus: a}
}

func servicesOf(d model.DatapathStatus, v view) []model.ServiceStatus {
	for i := range d.Services {
		d.Services[i].Backends = orEmpty(d.Services[i].Backends)
	}
	return orEmpty(v.ofServices(d.Services))
}

// backendsOf lists the backends of every service.
func backendsOf(d model.DatapathStatus, v view) []Backend {
	list := []Backend{}
	for _, s := range d.Services {
		if v.limited && !v.has(s.Segment) {
			continue // that it has a backend here is the service's own affair
		}
		for _, b := range s.Backends {
			if v.has(b.Segment) {
				list = append(list, Backend{Service: s.Name, BackendStatus: b})
			}
		}
	}
	return list
}

// orEmpty makes JSON say [] and not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
