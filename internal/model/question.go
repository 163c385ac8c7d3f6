package model

import "net/netip"

// Question asks what a director would do with a packet: with a given frame, or with a packet of
// these addresses and ports.
type Question struct {
	// Interface is where the packet comes in; empty: the director's interface that leads to the
	// source, or else its first.
	Interface string `json:"interface,omitempty"`
	Frame     Hex    `json:"frame,omitempty"` // Ethernet, without FCS; then no addresses and ports count

	// With is a set that the answer supposes to have been put; nil: sets are as they are.
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
