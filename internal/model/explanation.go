package model

import (
	"encoding/json"
	"net/netip"
)

// Explanation is what a director would do with a packet, and every decision on the way.
type Explanation struct {
	Interface string `json:"interface"` // that the packet comes in by
	Frame     Hex    `json:"frame"`     // as it comes in
	// Tunnel is the one of a tenant's network in which the packet was made up; nil: it was not, or in none.
	Tunnel  *ExplainedTunnel  `json:"tunnel,omitempty"`
	Flow    *ExplainedFlow    `json:"flow,omitempty"`    // nil: it has none, or its headers are not whole
	Service *ExplainedService `json:"service,omitempty"` // nil: the packet is of no service
	// Chosen is what chose the backend; "": nothing did, or the packet is a reply.
	Chosen Chosen `json:"chosen,omitempty"`
	// Memory is what the director remembers of the flow, whether the packet follows that or not.
	Memory *ExplainedMemory `json:"memory,omitempty"`
	// Slot is where the ring places the flow; nil: the ring was not asked.
	Slot *ExplainedSlot `json:"slot,omitempty"`
	// Before is the same in the ring of a service whose affinity has changed, for
	// connections that are older than the change.
	Before  *ExplainedSlot    `json:"before,omitempty"`
	Backend *ExplainedBackend `json:"backend,omitempty"` // the packet's backend; of a reply, its sender
	Reason  string            `json:"reason"`            // the label under which it would be counted
	Outcome Outcome           `json:"outcome"`
	Out     Hex               `json:"out,omitempty"`    // the frame as it leaves, or as the kernel gets it
	Leaves  string            `json:"leaves,omitempty"` // the interface that it leaves by
	// Steps are all of this in words, in the order in which it was decided.
	Steps []ExplainedStep `json:"steps"`
}

// ExplainedTunnel is a tunnel in which a packet of a tenant's network was made up, because the question names none.
type ExplainedTunnel struct {
	Wire   Segment    `json:"wire"`   // the network, with the VNI on the wire
	VTEP   netip.Addr `json:"vtep"`   // from which the packet comes
	Source netip.Addr `json:"source"` // of the packet inside
	// Known says that the packet's source is at this VTEP; false: nothing says where it is, and the VTEP is any one of the
	// segment that is known.
	Known bool `json:"known"`
}

// ExplainedStep is a decision in words.
type ExplainedStep struct {
	Step Decision `json:"step"`
	Says string   `json:"says"`
}

// Decision is what is decided, or shown, of a packet.
type Decision string

// The steps, in their order. Candidates are of the slot before them; each header of a packet is
// a step of its own.
const (
	StepComesIn    Decision = "comes in"
	StepTunnel     Decision = "tunnel" // that was made up
	StepSegment    Decision = "segment"
	StepFlow       Decision = "flow"
	StepService    Decision = "service"
	StepTier       Decision = "tier"   // of a service that has several
	StepClient     Decision = "client" // for a service that is for some clients only
	StepRemembered Decision = "remembered"
	StepSlot       Decision = "slot"
	StepSlotBefore Decision = "slot before"
	StepCandidate  Decision = "candidate"
	StepBackend    Decision = "backend"
	StepWay        Decision = "way"
	StepOutcome    Decision = "outcome"
	StepLeavesBy   Decision = "leaves by"
	StepPacketIn   Decision = "packet in"
	StepPacketOut  Decision = "packet out"
)

// Outcome says what happens to a packet: it is the beginning of a reason's label.
type Outcome string

// The outcomes.
const (
	OutcomePass    Outcome = "pass"    // to the kernel
	OutcomeForward Outcome = "forward" // to the backend or the client
	OutcomeAnswer  Outcome = "answer"  // back to its sender
	OutcomeDrop    Outcome = "drop"
)

// Chosen is what chose a packet's backend.
type Chosen string

// What may choose a backend, in the order in which it is asked.
const (
	ChosenByFragment Chosen = "first-fragment" // where the packet's first fragment went
	ChosenBySNAT     Chosen = "full-nat"       // full NAT knows the flow
	ChosenByQUIC     Chosen = "connection-id"  // QUIC's connection ID names the backend
	ChosenByMemory   Chosen = "memory"         // the flow is remembered
	ChosenByLoad     Chosen = "load"           // p2c: the less loaded of two, for a new connection
	ChosenByTurn     Chosen = "turn"           // round-robin: the next new connection's
	ChosenAtRandom   Chosen = "random"         // random: drawn for each new connection anew
	ChosenByLeast    Chosen = "least-load"     // least-conn: of all backends, for a new connection
	ChosenByRow      Chosen = "row"            // the first candidate of its slot that is up
	ChosenByAge      Chosen = "age"            // the oldest candidate that is up: the connection is older than what is remembered
)

// ExplainedFlow is what a packet is looked up by. For an ICMP error it is the flow of the packet
// inside, as the client sends it.
type ExplainedFlow struct {
	Segment     Segment        `json:"segment,omitzero"`
	Protocol    uint8          `json:"protocol"` // number of IANA's
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	TTL         uint8          `json:"ttl"`
	Length      int            `json:"length"`              // of the IP packet
	TCPFlags    string         `json:"tcp-flags,omitempty"` // such as "syn,ack"
	Fragment    string         `json:"fragment,omitempty"`  // "first" or "later"
	ICMPError   bool           `json:"icmp-error,omitempty"`
}

// ExplainedService is the service that the look-up finds for a packet.
type ExplainedService struct {
	Name     string    `json:"name"`
	ID       ServiceID `json:"id"`
	Policy   Policy    `json:"policy"`
	Affinity Affinity  `json:"affinity"`
	// Tier is the tier whose ring it is that places new connections; nil: there is one tier.
	Tier *ExplainedTier `json:"tier,omitempty"`
	// SourceRange says whether the service is for this client, if it is only for some.
	SourceRange *ExplainedSource `json:"source-range,omitempty"`
}

// ExplainedTier is the tier of a service that gets new connections.
type ExplainedTier struct {
	Active uint8  `json:"active"`
	Why    string `json:"why" doc:"for people"`
}

// ExplainedSource is where a client is, for a service that has source ranges. For an ICMP error it
// is the client whose flow the error is about.
type ExplainedSource struct {
	Range netip.Prefix `json:"range,omitzero"` // the longest that it is in; none: the packet is dropped
	Of    int          `json:"of"`             // ranges that the service has
}

// ExplainedMemory is what a director remembers of a flow.
type ExplainedMemory struct {
	Backend netip.AddrPort `json:"backend"`      // invalid: the backend is gone
	Class   string         `json:"class"`        // fresh, sustained or proved
	State   string         `json:"state"`        // as enum flow_state or snat_state names it
	Age     Duration       `json:"age,omitzero"` // since its last packet
	Follows bool           `json:"follows"`      // the packet goes there
}

// ExplainedSlot is a slot of a service's ring, and its row.
type ExplainedSlot struct {
	Number int `json:"number"`
	Of     int `json:"of"`
	// Settling says that flows of backends outside the row may be remembered.
	Settling   bool                 `json:"settling,omitempty"`
	Candidates []ExplainedCandidate `json:"candidates"` // in the order in which a new connection tries them
}

// ExplainedCandidate is a backend in a row.
type ExplainedCandidate struct {
	Name     string         `json:"name"`
	Backend  netip.AddrPort `json:"backend"`
	State    BackendState   `json:"state"` // in the kernel: "down" too while its next hop is unknown
	Override *Override      `json:"override,omitempty" doc:"why it has another state than in the file"`
	// Unhealthy is why its health check fails, with the reason first; empty: it does not.
	Unhealthy string `json:"unhealthy,omitempty"`
	// Age is its place in the order in which a packet of an unknown connection tries them,
	// the oldest owner first.
	Age int `json:"age"`
	// Generations are those of the service's log that place the flow on the candidate, the newest
	// first.
	Generations []ExplainedGeneration `json:"generations,omitempty"`
}

// ExplainedGeneration is a generation that places a flow on a backend.
type ExplainedGeneration struct {
	Number uint64 `json:"number"`
	Backup bool   `json:"backup,omitempty"` // as the owner's backup
}

// ExplainedBackend is a packet's backend and the way to it.
type ExplainedBackend struct {
	Name      string         `json:"name"`
	Backend   netip.AddrPort `json:"backend"` // port 0: the packet's own
	State     BackendState   `json:"state"`
	Mode      Mode           `json:"mode"`
	Local     bool           `json:"local,omitempty"`     // it is this host
	Interface string         `json:"interface,omitempty"` // that leads there
	NextHop   MAC            `json:"next-hop,omitzero"`
	// VTEP is where a backend in VXLAN or Geneve is, and Wire its network, with the VNI on the wire.
	VTEP netip.Addr `json:"vtep,omitzero"`
	Wire Segment    `json:"wire,omitzero"`
	// ByKernel says that the kernel finds the next hop and sends into the interface, because XDP
	// cannot.
	ByKernel bool           `json:"by-kernel,omitempty"`
	VLAN     uint16         `json:"vlan,omitempty"`  // that packets leave with
	MTU      uint16         `json:"mtu"`             // largest IP packet before encapsulation
	Source   netip.AddrPort `json:"source,omitzero"` // full NAT: this director's, instead of the client's
	// Asked is what the director asks for in the client's place; nil: the service does not ask.
	Asked *ExplainedAsked `json:"asked,omitempty"`
}

// ExplainedAsked is how far asking for redirection has come for the packet's flow.
type ExplainedAsked struct {
	State string         `json:"state"`       // as enum asked_state names it: nothing, plain, open or taken
	At    netip.AddrPort `json:"at,omitzero"` // taken: where its packets go
}

// Question asks what a director would do with a packet: with a given frame, or with a packet of
// these addresses and ports.
type Question struct {
	// Interface is where the packet comes in; empty: the director's interface that leads to the
	// source, or else its first.
	Interface string `json:"interface,omitempty" maxLength:"253"`
	Frame     Hex    `json:"frame,omitempty"` // Ethernet, without FCS; then no addresses and ports count

	// With is a set that the answer supposes to have been put; nil: sets are as they are.
	With *QuestionSet `json:"with,omitempty"`

	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	Protocol    string         `json:"protocol,omitempty" maxLength:"253"` // "tcp", "udp", "sctp" or "icmp": an echo request
	Flags       []string       `json:"flags,omitempty"`                    // of TCP; none: "ack"
	Segment     Segment        `json:"segment,omitzero"`                   // VLAN tags
	TTL         uint8          `json:"ttl,omitempty"`                      // 0: 64
	Payload     Hex            `json:"payload,omitempty"`
}

// QuestionSet is an owner's set that a question supposes.
type QuestionSet struct {
	Owner    string    `json:"owner"`
	Services []Service `json:"services"`
}

// MarshalJSON writes the services as earlier versions read them.
func (s QuestionSet) MarshalJSON() ([]byte, error) {
	stored := make([]StoredService, len(s.Services))
	for i := range s.Services {
		stored[i] = StoredService(s.Services[i])
	}
	return json.Marshal(struct {
		Owner    string          `json:"owner"`
		Services []StoredService `json:"services"`
	}{s.Owner, stored})
}
