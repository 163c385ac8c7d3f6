package model

import (
	"net/netip"
)

// Config is everything that one director or agent is told: what the group shares (Directors,
// Services) and what belongs to this host (Director, Agent, BGP, BFD, Hooks, API).
type Config struct {
	Director  Director       `json:"director"`
	Agent     Agent          `json:"agent"`
	Directors []netip.Prefix `json:"directors,omitempty"` // the group: agents accept tunnels from these addresses
	Coalesce  Duration       `json:"coalesce,omitzero"`   // changes within it are one generation
	Notice    Duration       `json:"notice,omitzero"`     // in a group: from a new generation to the first connection that it places
	Suspect   Duration       `json:"suspect,omitzero"`    // backends that a director loses from sight keep their connections for this long
	BGP       BGP            `json:"bgp,omitzero"`        // the routers that are told which VIPs are forwarded
	BFD       BFD            `json:"bfd,omitzero"`        // further neighbors that must learn at once when they are not
	Hooks     []Hook         `json:"hooks,omitempty"`     // the hooks that are called when VIPs come up or go
	API       API            `json:"api,omitzero"`        // the clients that may ask over TCP
	Loads     Loads          `json:"loads,omitzero"`      // how agents report loads of backends to directors
	Services  []Service      `json:"services"`

	FormerKeys []FormerKey `json:"-"` // that the file has
}

// Director is what one director must know about itself.
type Director struct {
	Interfaces []string `json:"interfaces"` // where clients' packets come in
	// ReplyInterfaces are further interfaces, by which full NAT's replies come, and whose driver
	// runs no program: those of overlays.
	ReplyInterfaces []string       `json:"reply-interfaces,omitempty"`
	XDP             XDPMode        `json:"xdp,omitempty"`           // how to attach; default auto
	TunnelSource    []netip.Prefix `json:"tunnel-source,omitempty"` // outer source per family; default: the egress interface's address
	SNAT            SNAT           `json:"snat"`
	ICMPRate        uint32         `json:"icmp-rate,omitempty"` // generated ICMP errors per second and CPU
	Limits          Limits         `json:"limits"`
	Group           []netip.Addr   `json:"group,omitempty"` // of all directors of the group, including this one, on the link that they share
	// FlowPort is the TCP port at which the group's directors tell each other what they remember of
	// flows; 0: they do not. nil: the default.
	FlowPort *uint16 `json:"flow-port,omitempty"`
	// Neighbor is how the director answers for VIPs itself, where there is no router to tell.
	Neighbor Neighbor `json:"neighbor,omitzero"`
	// KernelSources are the sources whose packets it leaves to its kernel, for services with the
	// key of the same name.
	KernelSources []netip.Prefix `json:"kernel-sources,omitempty"`
	// Owners bound the sets of some owners, when they are put.
	Owners []OwnerLimits `json:"owners,omitempty"`
	Store  Store         `json:"store,omitzero"`
}

// Store is where a director keeps sets of services, and the logs of all services.
type Store struct {
	Directory string `json:"directory,omitempty"` // empty: what the service manager says, or /var/lib/weir
	Etcd      Etcd   `json:"etcd,omitzero"`       // zero: the sets are not shared
}

// Etcd is the store that a group of directors shares, and agents report to.
type Etcd struct {
	Endpoints    []string `json:"endpoints,omitempty"` // https://HOST:PORT, of every member
	Prefix       string   `json:"prefix,omitempty"`    // of the group's keys
	CA           string   `json:"ca,omitempty"`        // PEM files; none: the system's CAs, and no client certificate
	Cert         string   `json:"cert,omitempty"`
	Key          string   `json:"key,omitempty"`
	User         string   `json:"user,omitempty"`
	PasswordFile string   `json:"password-file,omitempty"`
}

// Given reports whether a group's store is configured.
func (e Etcd) Given() bool { return len(e.Endpoints) > 0 }

// IsZero reports whether only keys that have a default are given.
func (e Etcd) IsZero() bool {
	return !e.Given() && e.Prefix == "" && e.CA+e.Cert+e.Key+e.User+e.PasswordFile == ""
}

// SNAT is where full NAT takes source addresses and ports from.
type SNAT struct {
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Ports     PortRange    `json:"ports,omitzero"`
}

// Limits bound the kernel memory that a director may take. They are fixed when
// the maps are made.
type Limits struct {
	Services   uint32 `json:"services,omitempty"`    // services
	Backends   uint32 `json:"backends,omitempty"`    // backends, counted once per service
	RingMemory uint64 `json:"ring-memory,omitempty"` // bytes of all rings, old and new
	Fragments  uint32 `json:"fragments,omitempty"`   // fragmented packets under way
	Flows      uint32 `json:"flows,omitempty"`       // flows that are remembered, on all CPUs together
	// SourceRanges are the prefixes in source-ranges of all services together.
	SourceRanges uint32 `json:"source-ranges,omitempty"`
}

// Agent is what the agent on a backend's host must know about its host.
type Agent struct {
	Interfaces []string `json:"interfaces,omitempty"` // where tunnels come in: names or patterns
	// ReplyInterfaces are further interfaces, names or patterns, by which pods' answers leave: to
	// pods of this host, and into an overlay.
	ReplyInterfaces []string `json:"reply-interfaces,omitempty"`
	// Namespaces are other network namespaces of this host in which connections to
	// VIPs end: names of "ip netns", or paths.
	Namespaces []string `json:"namespaces,omitempty"`
	// Guests are the prefixes of backends that this host forwards to and that have no sockets on
	// it, such as virtual machines: connections may be redirected to them.
	Guests []netip.Prefix `json:"guests,omitempty"`
	// SocketsElsewhere says that connections end where the agent does not see their sockets, so
	// that it must not judge by sockets.
	SocketsElsewhere bool `json:"sockets-elsewhere,omitempty"`
	// UDPFlows is how many UDP flows the agent remembers, to know which datagrams belong to this
	// host; 0: each datagram stays where it arrives. nil: the default.
	UDPFlows *uint32    `json:"udp-flows,omitempty"`
	Store    AgentStore `json:"store,omitzero"`
}

// AgentStore is where an agent reports connections to.
type AgentStore struct {
	Etcd Etcd `json:"etcd,omitzero"` // the directors'; zero: it does not report
}

// XDPMode is how the director's program is attached.
type XDPMode string

// The ways to attach.
const (
	XDPAuto    XDPMode = "auto"    // native, or generic where the driver has no XDP
	XDPNative  XDPMode = "native"  // native or an error
	XDPGeneric XDPMode = "generic" // generic: slow, but everywhere
)

// Service is a VIP, protocol and ports in a segment, with its backends.
type Service struct {
	Name     string     `json:"name"`
	Segment  Segment    `json:"segment,omitzero"`
	VIP      netip.Addr `json:"vip"`
	Protocol Protocol   `json:"protocol"`
	Port     PortRange  `json:"port"`
	// SourceRanges are where its clients are: packets of other clients are dropped. None:
	// everywhere.
	SourceRanges []netip.Prefix `json:"source-ranges,omitempty"`
	// KernelSources leaves packets from the director's KernelSources to the director's kernel.
	KernelSources bool `json:"kernel-sources,omitempty"`
	Mode          Mode `json:"mode"`
	// Fallback is, with mode redirect, how packets go that are not redirected; nil: gue.
	Fallback *Mode `json:"fallback,omitempty"`
	// RedirectTo is, with mode redirect, the prefixes that clients' hosts let connections be handed
	// over to; none: the listed backends.
	RedirectTo []netip.Prefix `json:"redirect-to,omitempty"`
	// RedirectUnprobed makes directors hand connections over to all backends, without finding
	// out whether they can take them.
	RedirectUnprobed bool `json:"redirect-unprobed,omitempty"`
	SNAT             bool `json:"snat,omitempty"` // with mode nat: full NAT
	// AskRedirect makes directors with full NAT ask backends that are directors to hand connections
	// over, in the place of clients.
	AskRedirect  bool         `json:"ask-redirect,omitempty"`
	Policy       Policy       `json:"policy,omitzero"`
	Affinity     Affinity     `json:"affinity,omitzero"`
	RingSize     uint32       `json:"ring-size,omitempty"`    // slots, a prime; 0: by the number of backends
	Retention    Duration     `json:"retention,omitzero"`     // how long a generation stays in the log at least
	MaxRetention Duration     `json:"max-retention,omitzero"` // and at most
	QUIC         []QUICConfig `json:"quic,omitempty"`         // with protocol udp: connection IDs that name the backend
	// MinHealthy is how many backends must not be down for the VIP to be announced; nil: one.
	MinHealthy *uint32      `json:"min-healthy,omitempty"`
	Health     *HealthCheck `json:"health,omitempty"` // nil: backends are not checked
	Backends   []Backend    `json:"backends"`
}

// Backend is a real server of a service.
type Backend struct {
	Name     string       `json:"name"`
	Address  netip.Addr   `json:"address"`
	Host     netip.Addr   `json:"host,omitzero"`  // the host whose agent delivers packets to the address, of a pod or container; zero: none
	Port     uint16       `json:"port,omitempty"` // with mode nat, or to fall back to, or with a host; 0: the packet's own
	Weight   uint16       `json:"weight"`         // share of new connections; 0: none
	State    BackendState `json:"state"`
	Mode     *Mode        `json:"mode,omitempty"`     // nil: the service's
	MAC      MAC          `json:"mac,omitzero"`       // next hop; zero: resolved through the kernel's neighbors
	VLAN     uint16       `json:"vlan,omitempty"`     // 802.1Q tag to leave with; 0: as the mode and segment say
	MTU      uint16       `json:"mtu,omitempty"`      // of the path to it; 0: that of the egress interface
	ServerID ServerIDs    `json:"server-id,omitzero"` // in a service with quic: the server IDs that name it in connection IDs
}

// ModeIn returns how packets that are not redirected reach the backend in a service: by its own
// mode, else the service's.
func (b Backend) ModeIn(s Service) Mode {
	if b.Mode != nil {
		return *b.Mode
	}
	return s.PacketMode()
}

// Endpoint returns what the backend is hashed by, its address and port: so no slot moves when it
// gets another name.
func (b Backend) Endpoint() netip.AddrPort {
	return netip.AddrPortFrom(b.Address, b.Port)
}
