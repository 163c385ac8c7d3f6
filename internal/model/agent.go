package model

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

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

// DefaultUDPFlows is how many UDP flows an agent remembers by default.
const DefaultUDPFlows = 1 << 16

// AgentStatus is what the agent on a backend's host says about itself: every
// number is read from the kernel when asked.
type AgentStatus struct {
	Interfaces []AgentInterface `json:"interfaces"`
	VIPs       []netip.Addr     `json:"vips"`     // that the agent holds on lo
	Reasons    []Counter        `json:"reasons"`  // every reason, in the order of enum host_reason
	Services   []AgentService   `json:"services"` // of which a backend is on this host
	Pods       []AgentPod       `json:"pods,omitempty"`
	// Redirects are the services whose connections may go to backends directly.
	Redirects []AgentRedirect `json:"redirects,omitempty"`
	// Loads is what was sent to directors about this host's loads; nil: nothing is to be sent.
	Loads *AgentLoads `json:"loads,omitempty"`
	// Directors is what became of reports of connections at the directors that the agent reports to by their API.
	Directors []AgentDirector `json:"directors,omitempty"`
	// Upkeep is the state of each part of the host that the agent maintains.
	Upkeep []Upkeep `json:"upkeep,omitempty"`
}

// AgentDirector is a director to which an agent reports connections by its API.
type AgentDirector struct {
	Director string    `json:"director"`      // its URL
	Shared   bool      `json:"shared"`        // it has brought the last report to all directors of its group
	Taken    uint64    `json:"taken"`         // reports
	Failed   uint64    `json:"failed"`        // attempts
	Last     time.Time `json:"last,omitzero"` // when it took a report
	Problem  string    `json:"problem,omitempty"`
}

// AgentPod is a pod of this host that is a backend of a service.
type AgentPod struct {
	Service string     `json:"service"`
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"` // 0: the packet's own
	// Flows are the flows that the agent remembers: established TCP connections, and UDP flows.
	Flows int `json:"flows"`
}

// AgentLoads is how an agent reports loads.
type AgentLoads struct {
	Directors int      `json:"directors"` // that it reports to
	Known     int      `json:"known"`     // those of them that have sent their number: they listen, and have the same key
	Interval  Duration `json:"interval"`  // between two reports, now
	Sent      uint64   `json:"sent"`      // messages
	Failed    uint64   `json:"failed"`    // that could not be sent
	Problem   string   `json:"problem,omitempty"`
}

// AgentRedirect is what happens to connections of one VIP on this host: as a client's, and
// as a backend's.
type AgentRedirect struct {
	Name            string         `json:"name"`
	VIP             netip.AddrPort `json:"vip"`
	Opened          uint64         `json:"opened"`       // connections of this host's clients that backends have taken over
	Connections     int            `json:"connections"`  // those of them that are remembered
	SentPackets     uint64         `json:"sent-packets"` // of these; several that the kernel coalesced count once
	SentBytes       uint64         `json:"sent-bytes"`
	ReceivedPackets uint64         `json:"received-packets"`
	ReceivedBytes   uint64         `json:"received-bytes"`
	Events          []Tallied      `json:"events"` // every event, in the order of enum redirect_event
}

// AgentInterface is an interface at which tunnels come in.
type AgentInterface struct {
	Name    string `json:"name"`
	Index   int    `json:"index"`
	Ingress string `json:"ingress"` // "xdp", "tcx" or "clsact"; empty: this host has only clients, of redirected services
	Egress  string `json:"egress"`  // "tcx" or "clsact", or empty
	// Redirect is how redirection is attached, both ways: "tcx" or "clsact"; empty: it is not
	// attached.
	Redirect string `json:"redirect,omitempty"`
	MTU      int    `json:"mtu"`
	NoXDP    string `json:"no-xdp,omitempty"` // why ingress does not use XDP
}

// AgentService is one service of this host as it is in the kernel.
type AgentService struct {
	Name     string     `json:"name"`
	VIP      netip.Addr `json:"vip"`
	Protocol Protocol   `json:"protocol"`
	Port     PortRange  `json:"port"`
	MSS      int        `json:"mss,omitempty"` // largest that a SYN of it may offer
	Packets  uint64     `json:"packets"`       // unwrapped; several that the kernel coalesced count once
	Bytes    uint64     `json:"bytes"`         // bytes of these packets, without their outer headers
	// NoPlace are packets whose flow the agent would have remembered, but the service's quota had
	// no room for it.
	NoPlace uint64 `json:"no-place,omitempty"`
}

func (a *Agent) setDefaults() {
	a.Store.Etcd.setDefaults()
	if a.UDPFlows == nil {
		flows := uint32(DefaultUDPFlows)
		a.UDPFlows = &flows
	}
}

func (v *validation) agent() {
	v.interfacePatterns("agent.interfaces", v.config.Agent.Interfaces)
	v.interfacePatterns("agent.reply-interfaces", v.config.Agent.ReplyInterfaces)
	v.namespaces()
	v.prefixes("agent.guests", v.config.Agent.Guests)
	v.agentStore()
	if flows := v.config.Agent.UDPFlows; flows != nil && *flows != 0 {
		v.limit("agent.udp-flows", uint64(*flows), MinUDPFlows, MaxUDPFlows)
	}
}

// MaxNamespaces bounds Agent.Namespaces: all of them are searched for a packet whose connection is
// in none.
const MaxNamespaces = 16

func (v *validation) namespaces() {
	names := v.config.Agent.Namespaces
	if len(names) > MaxNamespaces {
		v.errs.add("agent.namespaces", "are %d, at most %d are looked at", len(names), MaxNamespaces)
	}
	each(v, "agent.namespaces", names, strconv.Quote, func(name string) string {
		if name == "" || name == "." || name == ".." || !strings.HasPrefix(name, "/") && strings.Contains(name, "/") {
			return strconv.Quote(name) + " is neither a name of ip netns nor a path from the root"
		}
		return ""
	})
}

// interfacePatterns checks names of interfaces that may be patterns.
func (v *validation) interfacePatterns(path string, names []string) {
	v.interfaces(path, names)
	for i, name := range names {
		if _, err := filepath.Match(name, ""); err != nil {
			v.errs.add(fmt.Sprintf("%s[%d]", path, i), "%q is no pattern: %v", name, err)
		}
	}
}

// IsInterfacePattern reports whether a name of interfaces is a pattern (path/filepath.Match), which
// any number of interfaces may match, also none.
func IsInterfacePattern(name string) bool { return strings.ContainsAny(name, `*?[\\`) }
