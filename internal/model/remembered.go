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
	State   RememberedState
	Age     uint32 // since its last packet, in units of 2^30 ns
}

// RememberedState is how far a flow has come, by what its client has sent.
type RememberedState uint8

// The states of flows that directors tell each other. What begins is not told.
const (
	FlowOpen    RememberedState = 1 // TCP: established; UDP: at least two datagrams
	FlowClosing RememberedState = 2 // TCP: a FIN
	FlowReset   RememberedState = 3 // TCP: a RST
)
