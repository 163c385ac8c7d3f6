package model

import "net/netip"

// RememberedFlow is what a director remembers of a flow, in words that mean the same on
// all directors of its group: the flow's service and backend by what packets name them,
// and not by a director's indexes.
type RememberedFlow struct {
	Service ServiceID
	Backend netip.AddrPort // port 0: the packet's own
	Source  netip.AddrPort // the client
	Port    uint16         // that it sends to: one of the service's
	Class   FlowClass
	State   RememberedState
	Age     uint32 // since its last packet, in units of 2^30 ns
	Next    uint32 // TCP: the sequence number that the client goes on with; 0: not known
}

// NATFlow is a flow of full NAT.
type NATFlow struct {
	RememberedFlow
	Own netip.AddrPort // the director's address and port from which its packets come to the backend
}

// FlowClass is how well the packets that were seen of a flow show that it is real, and not
// forged: see bpf/lib/proof.h.
type FlowClass uint8

// The classes of flows.
const (
	FreshFlow     FlowClass = 0 // it may be one of a flood: it gives way to others, and of few directors tell each other
	SustainedFlow FlowClass = 1 // one side of it was seen to go on for a while
	ProvedFlow    FlowClass = 2 // both sides have sent what only they can
)

// String is the word that people read.
func (c FlowClass) String() string {
	return [...]string{"fresh", "sustained", "proved"}[min(c, ProvedFlow)]
}

// RememberedState is how far a flow has come, by what its client has sent.
type RememberedState uint8

// The states of flows. One that opens is not told.
const (
	FlowOpen    RememberedState = 1 // TCP: more than SYNs; UDP: at least two datagrams
	FlowClosing RememberedState = 2 // TCP: a FIN
	FlowReset   RememberedState = 3 // TCP: a RST
	FlowOpening RememberedState = 4 // TCP: only SYNs, or one packet of a connection that this director did not know: its backend is a guess; UDP: one datagram
)

// ServiceResets is how many fresh flows of a service were reset by their clients in the last minute.
type ServiceResets struct {
	Service ServiceID
	Flows   uint32
}

// The tables of flows, as people call them: of directors, and of agents.
const (
	FlowMemoryTable = "flow memory"
	NATTable        = "full NAT's table"

	UDPFlowsTable = "the agent's UDP flows"
	PodsTable     = "the flows of pods"
	RedirectTable = "the redirected connections"
)

// CrowdedService is one of those that have most of the flows in a table without room.
type CrowdedService struct {
	Service string
	Table   string
	Flows   uint32 // fresh ones that it has there; NATTable: all, where no service has a fresh one; of agents' tables: packets that found no place in some seconds
}
