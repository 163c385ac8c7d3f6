package model

import "net/netip"

// Header lengths in bytes (RFC 791, RFC 8200, RFC 768, draft-ietf-intarea-gue-09).
const (
	ipv4Header = 20
	ipv6Header = 40
	udpHeader  = 8
	gueHeader  = 4
)

// What GUE may carry behind its header: four bytes and a slot's other candidates.
const (
	gueList4 = 4 + (MaxCandidates-1)*4
	gueList6 = 4 + (MaxCandidates6-1)*16
)

// Overhead returns the most bytes that the mode may put in front of a packet for
// a backend of this address: 0 for modes that only rewrite. For GUE it counts the
// longest list of candidates, so that a change of backends never shrinks the
// packets of a live connection.
func (m Mode) Overhead(backend netip.Addr) int {
	outer, list := ipv6Header, gueList6
	if backend.Is4() {
		outer, list = ipv4Header, gueList4
	}
	switch m {
	case IPIP:
		return outer
	case GUE:
		return outer + udpHeader + gueHeader + list
	}
	return 0
}
