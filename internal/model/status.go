package model

import (
	"net/netip"
	"time"
)

// DatapathStatus is what the datapath says about itself: every number is read
// from the kernel when asked.
type DatapathStatus struct {
	Interfaces []InterfaceStatus `json:"interfaces"`
	Reasons    []Counter         `json:"reasons"` // every reason, in the order of enum reason
	Services   []ServiceStatus   `json:"services"`
	Segments   []SegmentCounts   `json:"segments"`           // of those that have services or backends, or had some, in the order of their keys
	RingMemory uint64            `json:"ring-memory"`        // bytes that rings take now
	Limits     Limits            `json:"limits"`             // by which the kernel's maps were made
	Flows      FlowStatus        `json:"flows"`              // flow memory
	NAT        *NATStatus        `json:"nat,omitempty"`      // full NAT's table; nil: there is none
	QUIC       []Tallied         `json:"quic"`               // what connection IDs said, in the order of enum quic_event
	Asks       []Tallied         `json:"asks"`               // of services that ask to be redirected, in the order of enum ask_event
	Left       []Tallied         `json:"generations-left"`   // generations that have left logs, by why
	Agents     ReporterStatus    `json:"agents"`             // whose reports this director has
	Loads      *LoadStatus       `json:"loads,omitempty"`    // nil: agents do not report loads
	Peers      []PeerStatus      `json:"peers,omitempty"`    // the other directors, if they share the flows that they remember
	Steering   *SteeringStatus   `json:"steering,omitempty"` // nil: no flow is to be steered
	FanOut     *FanOutStatus     `json:"fan-out,omitempty"`  // nil: no packet is given to another CPU
	Capture    CaptureStatus     `json:"capture"`            // what is captured for clients
	Hooks      []HookStatus      `json:"hooks,omitempty"`    // the programs and servers that are told which VIPs are up
	Neighbor   NeighborStatus    `json:"neighbor,omitzero"`  // which director answers for VIPs by ARP and NDP
	Strangers  uint64            `json:"strangers"`          // hosts that asked for flows, and are no directors of the group
	Probes     []Tallied         `json:"probes"`             // of backends' health, by their results
	Refused    []Tallied         `json:"callers-refused"`    // callers of the API over TCP that were refused, by the cause
	// RedirectProbes are the probes of whether connections can be redirected to backends, by their
	// results.
	RedirectProbes []Tallied `json:"redirect-probes,omitempty"`
	// CheckPackets are the packets of probes that take the way of clients' packets, by what became
	// of them; none: no probe takes it.
	CheckPackets []Tallied   `json:"check-packets,omitempty"`
	CPUs         []CPUStatus `json:"cpus"` // that run; none if the kernel does not let them be watched
	// HopsMoved is how often a next hop of backends has got another MAC address.
	HopsMoved uint64 `json:"next-hops-moved"`
	// Upkeep is the state of each part of the host that the director maintains.
	Upkeep []Upkeep `json:"upkeep,omitempty"`
	// HostSources are what says where hosts of tenants' networks are, besides the configuration.
	HostSources []HostSourceStatus `json:"host-sources,omitempty"`
	OVN         *OVNStatus         `json:"ovn,omitempty"` // nil: there is none
}

// ReporterStatus is how many backends have agents that report connections.
type ReporterStatus struct {
	Reporting int `json:"reporting"`
	Silent    int `json:"silent"` // whose last report is older than a minute
	// Taken and Refused are reports that came by this director's API.
	Taken   uint64 `json:"taken"`
	Refused uint64 `json:"refused"`
}

// FlowStatus is what the director remembers of flows.
type FlowStatus struct {
	Remembered int       `json:"remembered"` // flows, now
	Fresh      int       `json:"fresh"`      // those of them that may be of a flood, and give way to others
	Settling   int       `json:"settling"`   // slots without candidates other than owner and backup, whose flows may be of several backends
	Events     []Tallied `json:"events"`     // every event, in the order of enum flow_event
	Imported   []Tallied `json:"told"`       // what became of flows that other directors have shared, in the order of enum told_outcome
}

// NATStatus is how full full NAT's flow table is.
type NATStatus struct {
	Flows  int `json:"flows"`  // that live, now
	Fresh  int `json:"fresh"`  // those of them that may be of a flood, and give way to others
	Places int `json:"places"` // how many there can be: one for each address, port and protocol
	Shared int `json:"shared"` // flows of other directors' addresses, which this director goes on with
}

// PeerStatus is the state of another director of the group, as to the flows that both remember.
type PeerStatus struct {
	Director   netip.Addr `json:"director"`
	Shares     time.Time  `json:"tells,omitzero"`    // since when it shares flows with this director; zero: it does not
	Listens    time.Time  `json:"listens,omitzero"`  // since when this director shares flows with it
	Heard      uint64     `json:"heard"`             // flows that it has shared
	Shared     uint64     `json:"told"`              // flows that were shared with it
	Everything uint64     `json:"everything"`        // times that it got all remembered flows
	Slow       uint64     `json:"slow"`              // times that it was, because it was too slow for new flows
	Garbage    uint64     `json:"garbage"`           // times that it could not be understood
	Problem    string     `json:"problem,omitempty"` // why it shares none
}

// Tallied is how often an event has happened.
type Tallied struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// CPUStatus is a CPU's work on packets, weir's and all others, in the last 10 seconds. Shares are
// from 0 to 1.
type CPUStatus struct {
	CPU         int     `json:"cpu"`
	Utilization float64 `json:"utilization"` // share of its capacity for packets
	Busy        float64 `json:"busy"`        // share of its time
	Fullness    float64 `json:"fullness"`    // packets that a poll found, as a share of those that it may take
}

// InterfaceStatus is one interface that the director should be attached to.
type InterfaceStatus struct {
	Name string `json:"name"` // the one that it has now
	// Configured is the interface's name in the configuration, if that is an alternative or a
	// former name.
	Configured string `json:"configured,omitempty"`
	Index      int    `json:"index"` // 0: the interface does not exist
	XDP        string `json:"xdp"`   // "native" or "generic"; empty: the director's program is not attached
	MTU        int    `json:"mtu"`
}

// Counter counts packets and the bytes of their IP packets, as they came.
type Counter struct {
	Name    string `json:"name"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// ServiceStatus is one service as it is in the kernel.
type ServiceStatus struct {
	Name     string     `json:"name"`
	Segment  Segment    `json:"segment"`
	VIP      netip.Addr `json:"vip"`
	Protocol Protocol   `json:"protocol"`
	Port     PortRange  `json:"port"`
	Mode     Mode       `json:"mode"` // of the service; a backend may have another one
	Policy   Policy     `json:"policy"`
	// SourceRanges are where its clients have to be; none: anywhere.
	SourceRanges []netip.Prefix `json:"source-ranges,omitempty"`
	Slots        int            `json:"slots"`
	Log          LogStatus      `json:"log"`
	Health       *ServiceHealth `json:"health,omitempty"` // nil: its backends are not checked
	Tiers        *ServiceTiers  `json:"tiers,omitempty"`  // nil: its backends are in one tier
	QUIC         []QUICStatus   `json:"quic,omitempty"`   // configurations of connection IDs
	Packets      uint64         `json:"packets"`          // forwarded, also to backends that are gone
	Bytes        uint64         `json:"bytes"`
	Opened       uint64         `json:"opened"`  // TCP connections: SYNs that were forwarded, including those sent again
	Dropped      uint64         `json:"dropped"` // packets
	Remembered   int            `json:"remembered" doc:"flows in flow memory, now"`
	// Reset counts the TCP flows whose clients have sent a RST in the last minute: remembered ones,
	// and those that were fresh at other directors of the group.
	Reset int `json:"reset" doc:"flows whose client has sent a RST in the last minute: those that are remembered, and what other directors of the group count of fresh ones"`
	// ResetsShared counts those of them that other directors of the group have shared.
	ResetsShared []ResetsTold    `json:"reset-told,omitempty" doc:"which of these other directors of the group count, by director"`
	Loads        *ServiceLoads   `json:"loads,omitempty"` // nil: its policy uses no reported loads
	Backends     []BackendStatus `json:"backends"`
}

// ResetsTold is how many fresh flows were reset in the last minute, as another director of the
// group says. The name is that of the API's schema.
type ResetsTold struct {
	Director netip.Addr `json:"director"`
	Flows    uint32     `json:"flows"`
}

// LogStatus is what a service's log of generations is and does.
type LogStatus struct {
	Generations int       `json:"generations"`
	Oldest      time.Time `json:"oldest,omitzero"` // when the oldest one became the newest
	Waits       bool      `json:"waits"`           // a change of membership or ring size waits for room in the log
	Coming      int       `json:"coming"`          // the newest generations that place no connections yet
	Shared      int       `json:"shared"`          // slots that may have connections of several backends
	Moved       int       `json:"moved"`           // slots that got another owner with the last change that moved any, since the director started
	MovedTotal  uint64    `json:"moved-total"`     // slots that got another owner with any change since then
	Held        int       `json:"held"`            // slots that keep an older owner until their rows have room
	Kept        int       `json:"kept"`            // slots of older generations in which backends may still have connections
	Starting    int       `json:"starting"`        // backends that start slowly, and do not have their whole share yet
}

// QUICStatus is the visible part of a configuration of connection IDs as it is in the kernel.
type QUICStatus struct {
	ID             uint8          `json:"id"`
	Encryption     QUICEncryption `json:"encryption"`
	ServerIDLength int            `json:"server-id-length"` // bytes
	NonceLength    int            `json:"nonce-length"`     // bytes
}

// QUICEncryption is how connection IDs are encrypted.
type QUICEncryption string

// The ways to encrypt connection IDs: the key and the lengths decide.
const (
	Plaintext  QUICEncryption = "none"
	SinglePass QUICEncryption = "single-pass"
	FourPass   QUICEncryption = "four-pass"
)

// UnreachableBackend is a backend that should get packets, and to which there is no way.
type UnreachableBackend struct {
	Service, Backend string
	Segment          Segment // of the service
	Why              string
}

// MovedNeighbor is a next hop whose MAC address has just changed: another host has its address.
type MovedNeighbor struct {
	Address     netip.Addr
	Interface   string
	Now, Before MAC
	InTurn      bool     // it has had both several times: two hosts have the address
	Backends    []string // that are reached by it, SERVICE/BACKEND
}

// LoweredMTU is an interface whose MTU is smaller than it was while the process has run.
type LoweredMTU struct {
	Interface   string
	Now, Before int
}

// BackendStatus is one backend of one service as it is in the kernel.
type BackendStatus struct {
	Name      string       `json:"name"`
	Address   netip.Addr   `json:"address"`
	Segment   Segment      `json:"segment,omitzero"` // the tenant's network that it is in; none: the host's routes lead to it
	Host      netip.Addr   `json:"host,omitzero"`    // the host whose agent delivers packets to it; none: no agent
	Mode      Mode         `json:"mode"`
	Tier      uint8        `json:"tier,omitempty"`
	State     BackendState `json:"state"`     // "down" too while its next hop is unknown
	Local     bool         `json:"local"`     // it is this host, or a pod of it
	Interface string       `json:"interface"` // that packets leave by
	NextHop   MAC          `json:"next-hop"`  // empty while unknown, and if the kernel finds it
	// ByKernel says that the kernel finds the next hop and sends into the interface, because XDP
	// cannot.
	ByKernel bool `json:"by-kernel,omitempty"`
	// Unreachable says why there is no way to it; empty: there is one.
	Unreachable string `json:"unreachable,omitempty"`
	MTU         uint16 `json:"mtu"`   // largest IP packet before encapsulation
	Slots       int    `json:"slots"` // that it owns
	// Share is its part of new connections, by the ring or the turns, and by which backends are up. Nil:
	// the policy compares loads.
	Share    *float64  `json:"share,omitempty"`
	Packets  uint64    `json:"packets"`
	Bytes    uint64    `json:"bytes"`
	Opened   uint64    `json:"opened"` // TCP connections: SYNs that were forwarded, including those sent again
	ServerID ServerIDs `json:"server-id,omitzero"`

	Port   uint16         `json:"port,omitempty"`   // with mode nat or a host; 0: the packet's own
	Health *BackendHealth `json:"health,omitempty"` // nil: it is not checked
	Strain *BackendStrain `json:"strain,omitempty"` // nil: no agent reports signs of strain, and the backend has its share
	Load   *BackendLoad   `json:"load,omitempty"`   // nil: it was not reported
	// Redirect says whether connections are handed over to it; nil: they should not be.
	Redirect *BackendRedirect `json:"redirect,omitempty"`
	// Override is why its state is not the file's; nil: it is the file's, or its set's.
	Override *Override `json:"override,omitempty"`
}

// BackendStrain is what agents report about a backend's strain, and the result.
type BackendStrain struct {
	Parts     uint8     `json:"parts"`               // how many eighths of its share it keeps
	Since     time.Time `json:"since,omitzero"`      // of the last step, UTC
	Refused   float64   `json:"refused,omitempty"`   // connections in a second, by the last report
	Overflows float64   `json:"overflows,omitempty"` // that found no room in the accept queue, or datagrams in the receive buffer
}

// BackendHealth is what a director's own probes have found out about a backend.
type BackendHealth struct {
	Kind     CheckKind      `json:"kind"`
	State    HealthState    `json:"state"`
	Since    time.Time      `json:"since"`             // of the state, UTC
	To       netip.AddrPort `json:"to,omitzero"`       // what the last probe went to
	Probed   time.Time      `json:"probed,omitzero"`   // when the last probe ended, UTC
	Took     Duration       `json:"took,omitzero"`     // that probe
	Reason   string         `json:"reason,omitempty"`  // why it failed
	Detail   string         `json:"detail,omitempty"`  // the same for people
	Failures int            `json:"failures,omitzero"` // in a row, of a backend that is still up
}

// View is what a director's probes have found about a service's backends. Backends about which it
// knows nothing yet are not in it.
type View struct {
	ServiceID
	Up   []netip.AddrPort `json:"up,omitempty"`
	Down []netip.AddrPort `json:"down,omitempty"`
}

// ServiceHealth is how many of a service's backends are healthy, among those that would get
// connections if all were healthy.
type ServiceHealth struct {
	Kind    CheckKind `json:"kind"`
	Up      int       `json:"up"`
	Down    int       `json:"down"`
	Unknown int       `json:"unknown"` // none of their probes has ended yet
	Panic   bool      `json:"panic"`   // so few are up that the checks are not believed: all backends to which there is a way are used
}

// Override is a state that an operator has given to a backend of a director's own file, outside the
// file.
type Override struct {
	State BackendState `json:"state"`
	By    string       `json:"by" doc:"who: the user of a local process, or the name of a client"`
	At    time.Time    `json:"at"`
}

// BackendOverride is an override with its backend. It ends when the file gives the backend another
// address or a state other than active, or no longer has it.
type BackendOverride struct {
	Service  string     `json:"service"`
	Backend  string     `json:"backend"`
	Address  netip.Addr `json:"address"`
	Override `json:",inline"`
}

// OverrideIndex finds overrides by the names of the service and the backend.
type OverrideIndex map[[2]string]*BackendOverride

// IndexOverrides makes the index of a list, to whose elements it leads.
func IndexOverrides(list []BackendOverride) OverrideIndex {
	x := make(OverrideIndex, len(list))
	for i := range list {
		x[[2]string{list[i].Service, list[i].Backend}] = &list[i]
	}
	return x
}

// Named returns the override of a backend; nil: there is none.
func (x OverrideIndex) Named(service, backend string) *BackendOverride {
	return x[[2]string{service, backend}]
}

// Of returns the override of a backend with this address; nil: there is none.
func (x OverrideIndex) Of(s *Service, b *Backend) *BackendOverride {
	if o := x.Named(s.Name, b.Name); o != nil && o.Address == b.Address {
		return o
	}
	return nil
}

// DirectorRun is what a director of a group says about itself.
type DirectorRun struct {
	Address  netip.Addr `json:"address,omitzero"` // in the group; zero: it is in none
	Self     bool       `json:"self,omitempty"`   // it is the director that was asked
	Version  string     `json:"version"`
	Started  time.Time  `json:"started"`
	Revision uint64     `json:"revision"`          // of the sets that it follows
	Services int        `json:"services"`          // that it forwards, including those of its own file
	Refused  string     `json:"refused,omitempty"` // why it does not do what the configuration asks for
}

// Upkeep is the state of one part of the host that weir maintains.
type Upkeep struct {
	Part     string          `json:"part"`               // as in docs/operate/upkeep.md
	Repairs  uint64          `json:"repairs"`            // since the process started
	Problems []UpkeepProblem `json:"problems,omitempty"` // the things that do not hold now
	Unknown  bool            `json:"unknown,omitempty" doc:"the last look could not compare the part yet: repairs and problems are those of earlier looks"`
}

// UpkeepProblem is one thing that should hold and does not.
type UpkeepProblem struct {
	What  string      `json:"what,omitempty"` // empty: the whole part, which cannot be read
	State UpkeepState `json:"state"`
	Found string      `json:"found"`           // what is there instead
	By    string      `json:"by,omitempty"`    // the process that changed it, if known
	Error string      `json:"error,omitempty"` // why it cannot be repaired, or read
	Since time.Time   `json:"since"`           // when it came to this state
}

// UpkeepState says what happened to a thing that did not hold.
type UpkeepState string

// The states. The first two are told once and then over; a problem has one of the others.
const (
	UpkeepRepaired  UpkeepState = "repaired"  // weir has put it right
	UpkeepHolds     UpkeepState = "holds"     // a problem is over
	UpkeepWaiting   UpkeepState = "waiting"   // weir cannot put it right, and waits for it
	UpkeepFailing   UpkeepState = "failing"   // putting it right fails, and is tried again each second
	UpkeepContested UpkeepState = "contested" // another program changes it back: weir has stopped
)
