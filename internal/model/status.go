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
	RingMemory uint64            `json:"ring-memory"`       // bytes that rings take now
	Flows      FlowStatus        `json:"flows"`             // flow memory
	NAT        *NATStatus        `json:"nat,omitempty"`     // full NAT's table; nil: there is none
	QUIC       []Tallied         `json:"quic"`              // what connection IDs said, in the order of enum quic_event
	Asks       []Tallied         `json:"asks"`              // of services that ask to be redirected, in the order of enum ask_event
	Left       []Tallied         `json:"generations-left"`  // generations that have left logs, by why
	Agents     ReporterStatus    `json:"agents"`            // whose reports this director has
	Loads      *LoadStatus       `json:"loads,omitempty"`   // nil: nobody reports loads
	Peers      []PeerStatus      `json:"peers,omitempty"`   // the other directors, where they share what they remember of flows
	Capture    CaptureStatus     `json:"capture"`           // what is captured for clients
	Hooks      []HookStatus      `json:"hooks,omitempty"`   // who else is told which VIPs are up
	Neighbor   NeighborStatus    `json:"neighbor,omitzero"` // who answers for VIPs by ARP and NDP
	Strangers  uint64            `json:"strangers"`         // who wanted to be told of flows, and were no directors of the group
	Probes     []Tallied         `json:"probes"`            // of backends' health, by what they said
	// RedirectProbes are of whether backends can be redirected to, by what they said.
	RedirectProbes []Tallied `json:"redirect-probes,omitempty"`
	// CheckPackets are those of probes that take the way of clients' packets, by what has
	// become of them; none: no probe does.
	CheckPackets []Tallied   `json:"check-packets,omitempty"`
	CPUs         []CPUStatus `json:"cpus"` // that run; none where the kernel does not let them be watched
	// Upkeep is how it is with each part of the host that the director keeps as it should be.
	Upkeep []Upkeep `json:"upkeep,omitempty"`
}

// ReporterStatus is how many backends agents report connections of.
type ReporterStatus struct {
	Reporting int `json:"reporting"`
	Silent    int `json:"silent"` // that were reported of, and have not been for more than a minute
}

// FlowStatus is what the director remembers of flows.
type FlowStatus struct {
	Remembered int       `json:"remembered"` // flows, now
	Fresh      int       `json:"fresh"`      // of these: they may be of a flood, and give way to others
	Settling   int       `json:"settling"`   // slots without candidates other than owner and backup, whose flows may be of several backends
	Events     []Tallied `json:"events"`     // every event, in the order of enum flow_event
	Told       []Tallied `json:"told"`       // what became of flows that other directors have told, in the order of enum told_outcome
}

// NATStatus is how full the table of full NAT's flows is.
type NATStatus struct {
	Flows  int `json:"flows"`  // that live, now
	Fresh  int `json:"fresh"`  // of these: they may be of a flood, and give way to others
	Places int `json:"places"` // one for each address, port and protocol
}

// PeerStatus is how it is with another director of the group, of what both remember of
// flows.
type PeerStatus struct {
	Director   netip.Addr `json:"director"`
	Tells      time.Time  `json:"tells,omitzero"`    // since when it tells this one; zero: it does not
	Listens    time.Time  `json:"listens,omitzero"`  // since when this one tells it
	Heard      uint64     `json:"heard"`             // flows that it has told
	Told       uint64     `json:"told"`              // flows that it was told
	Everything uint64     `json:"everything"`        // times that it was told all that is remembered
	Slow       uint64     `json:"slow"`              // times that it was, because it was too slow for what is new
	Garbage    uint64     `json:"garbage"`           // times that it could not be understood
	Problem    string     `json:"problem,omitempty"` // why it does not tell
}

// Tallied is how often something has happened.
type Tallied struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// CPUStatus is a CPU's work with packets, weir's and all others, in the last 10
// seconds. Shares are from 0 to 1.
type CPUStatus struct {
	CPU         int     `json:"cpu"`
	Utilization float64 `json:"utilization"` // share of its capacity for packets
	Busy        float64 `json:"busy"`        // share of its time
	Fullness    float64 `json:"fullness"`    // packets that a poll found, to those that it may take
}

// InterfaceStatus is one interface that the director is to be attached to.
type InterfaceStatus struct {
	Name string `json:"name"` // the one that it has now
	// Configured is what the configuration calls it, where that is another of its names, or one
	// that it had.
	Configured string `json:"configured,omitempty"`
	Index      int    `json:"index"` // 0: it is not there
	XDP        string `json:"xdp"`   // "native" or "generic"; empty: it has not the director's program
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
	QUIC         []QUICStatus   `json:"quic,omitempty"`   // configurations of connection IDs
	Packets      uint64         `json:"packets"`          // forwarded, also to backends that are gone
	Bytes        uint64         `json:"bytes"`
	Opened       uint64         `json:"opened"`  // TCP connections: SYNs that were forwarded, those sent again, too
	Dropped      uint64         `json:"dropped"` // packets
	// Reset is of TCP flows whose clients have sent a RST in the last minute: those that are
	// remembered, and those that were fresh at other directors of the group.
	Reset int `json:"reset" doc:"flows whose client has sent a RST in the last minute: those that are remembered, and what other directors of the group count of fresh ones"`
	// ResetTold is what of these other directors of the group have told.
	ResetTold []ResetsTold    `json:"reset-told,omitempty" doc:"which of these other directors of the group count, by director"`
	Loads     *ServiceLoads   `json:"loads,omitempty"` // nil: its policy goes by none that are reported
	Backends  []BackendStatus `json:"backends"`
}

// ResetsTold is how many fresh flows another director of the group says were reset in the last minute.
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
	Kept        int       `json:"kept"`            // slots of older generations that agents may still have connections in
	Starting    int       `json:"starting"`        // backends that start slowly, and do not have their whole share yet
}

// QUICStatus is a configuration of connection IDs as it is in the kernel: what may be
// seen of it.
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

// UnreachableBackend is a backend that is to get packets, and to which there is no way.
type UnreachableBackend struct {
	Service, Backend string
	Why              string
}

// BackendStatus is one backend of one service as it is in the kernel.
type BackendStatus struct {
	Name      string       `json:"name"`
	Address   netip.Addr   `json:"address"`
	Host      netip.Addr   `json:"host,omitzero"` // whose agent delivers packets to it; none: nobody has to
	Mode      Mode         `json:"mode"`
	State     BackendState `json:"state"`     // "down" too while its next hop is unknown
	Local     bool         `json:"local"`     // it is this host, or a pod of it
	Interface string       `json:"interface"` // that packets leave by
	NextHop   MAC          `json:"next-hop"`  // empty while unknown, and where the kernel knows it
	// ByKernel says that the kernel sends into the interface, as XDP cannot, and finds the next hop.
	ByKernel bool `json:"by-kernel,omitempty"`
	// Unreachable says why there is no way to it; empty: there is one.
	Unreachable string    `json:"unreachable,omitempty"`
	MTU         uint16    `json:"mtu"`   // largest IP packet before encapsulation
	Slots       int       `json:"slots"` // that it owns
	Packets     uint64    `json:"packets"`
	Bytes       uint64    `json:"bytes"`
	Opened      uint64    `json:"opened"` // TCP connections: SYNs that were forwarded, those sent again, too
	ServerID    ServerIDs `json:"server-id,omitzero"`

	Port   uint16         `json:"port,omitempty"`   // with mode nat or a host; 0: the packet's own
	Health *BackendHealth `json:"health,omitempty"` // nil: it is not checked
	Strain *BackendStrain `json:"strain,omitempty"` // nil: nobody reports signs of strain, and it has its share
	Load   *BackendLoad   `json:"load,omitempty"`   // nil: nobody has reported it
	// Redirect says whether connections are handed over to it; nil: they are not to be.
	Redirect *BackendRedirect `json:"redirect,omitempty"`
	// Override is why its state is another than the file's; nil: it is the file's, or its set's.
	Override *Override `json:"override,omitempty"`
}

// BackendStrain is what agents report of a backend's strain, and what follows from it.
type BackendStrain struct {
	Parts     uint8     `json:"parts"`               // of eight that it keeps of its share
	Since     time.Time `json:"since,omitzero"`      // of the last step, UTC
	Refused   float64   `json:"refused,omitempty"`   // connections in a second, by the last report
	Overflows float64   `json:"overflows,omitempty"` // that found no room in the accept queue, or datagrams in the receive buffer
}

// BackendHealth is what a director's own probes of a backend have found out.
type BackendHealth struct {
	Kind     CheckKind      `json:"kind"`
	State    HealthState    `json:"state"`
	Since    time.Time      `json:"since"`             // of the state, UTC
	To       netip.AddrPort `json:"to,omitzero"`       // what the last probe went to
	Probed   time.Time      `json:"probed,omitzero"`   // when the last probe ended, UTC
	Took     Duration       `json:"took,omitzero"`     // that probe
	Reason   string         `json:"reason,omitempty"`  // why it failed
	Detail   string         `json:"detail,omitempty"`  // the same for people
	Failures int            `json:"failures,omitzero"` // in a row, of a backend that is up all the same
}

// ServiceHealth is how many of a service's backends are healthy, of those that would get
// connections if all were.
type ServiceHealth struct {
	Kind    CheckKind `json:"kind"`
	Up      int       `json:"up"`
	Down    int       `json:"down"`
	Unknown int       `json:"unknown"` // no probe of theirs has ended yet
	Panic   bool      `json:"panic"`   // so few are up that all of them are used
}
