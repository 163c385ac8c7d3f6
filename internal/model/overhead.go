package model

import "net/netip"

// Header lengths in bytes (RFC 791, RFC 8200, RFC 768, draft-ietf-intarea-gue-09).
const (
	ipv4Header = 20
	ipv6Header = 40
	udpHeader  = 8
	gueHeader  = 4
)

// Overhead returns the bytes that the mode puts in front of a packet for a
// backend of this address: 0 for modes that only rewrite.
func (m Mode) Overhead(backend netip.Addr) int {
	outer := ipv6Header
	if backend.Is4() {
		outer = ipv4Header
	}
	switch m {
	case IPIP:
		return outer
	case GUE:
		return outer + udpHeader + gueHeader
	}
	return 0
}
