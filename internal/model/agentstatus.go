package model

import "net/netip"

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
	// Loads is what was sent to directors of this host's loads; nil: nothing is to be.
	Loads *AgentLoads `json:"loads,omitempty"`
	// Upkeep is how it is with each part of the host that the agent keeps as it should be.
	Upkeep []Upkeep `json:"upkeep,omitempty"`
}

// AgentPod is a pod of this host that is a backend of a service.
type AgentPod struct {
	Service string     `json:"service"`
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"` // 0: the packet's own
	// Flows are those that are remembered: established connections of TCP, and flows of UDP.
	Flows int `json:"flows"`
}

// AgentLoads is how an agent reports loads.
type AgentLoads struct {
	Directors int      `json:"directors"` // that it reports to
	Known     int      `json:"known"`     // of these, those that have said their number: they listen, and have the same key
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
	Opened          uint64         `json:"opened"`       // connections of this host's clients that backends have got
	Connections     int            `json:"connections"`  // of these, remembered
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
	Ingress string `json:"ingress"` // "xdp", "tcx" or "clsact"; empty: only clients are here, of redirected services
	Egress  string `json:"egress"`  // "tcx" or "clsact", or empty
	// Redirect is how redirection is attached, both ways: "tcx" or "clsact"; empty: it is not.
	Redirect string `json:"redirect,omitempty"`
	MTU      int    `json:"mtu"`
	NoXDP    string `json:"no-xdp,omitempty"` // why ingress is not XDP
}

// AgentService is one service of this host's as it is in the kernel.
type AgentService struct {
	Name     string     `json:"name"`
	VIP      netip.Addr `json:"vip"`
	Protocol Protocol   `json:"protocol"`
	Port     PortRange  `json:"port"`
	MSS      int        `json:"mss,omitempty"` // largest that a SYN of it may offer
	Packets  uint64     `json:"packets"`       // unwrapped; several that the kernel coalesced count once
	Bytes    uint64     `json:"bytes"`         // of these, without their outer headers
	// NoPlace are packets whose flow would have stayed in the agent's memory, and found no place
	// within the service's quota.
	NoPlace uint64 `json:"no-place,omitempty"`
}
