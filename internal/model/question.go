package model

import "net/netip"

// Question asks what a director would do with a packet: with a frame, or with one that
// has these addresses and ports.
type Question struct {
	// Interface is where the packet comes in; empty: of the director's, the one that leads
	// to the source, or else the first.
	Interface string `json:"interface,omitempty"`
	Frame     Hex    `json:"frame,omitempty"` // Ethernet, without FCS; then no addresses and ports count

	// With is a set as it would be: the answer is as if it had been put. nil: as it is.
	With *QuestionSet `json:"with,omitempty"`

	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	Protocol    string         `json:"protocol,omitempty"` // "tcp", "udp" or "icmp": an echo request
	Flags       []string       `json:"flags,omitempty"`    // of TCP; none: "ack"
	Segment     Segment        `json:"segment,omitzero"`   // VLAN tags
	TTL         uint8          `json:"ttl,omitempty"`      // 0: 64
	Payload     Hex            `json:"payload,omitempty"`
}

// QuestionSet is an owner's set that a question supposes.
type QuestionSet struct {
	Owner    string    `json:"owner"`
	Services []Service `json:"services"`
}
