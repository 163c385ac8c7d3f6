package model

import "net/netip"

// candidateListHeader is what precedes the addresses of a candidate list in a
// GUE header's private data.
const candidateListHeader = 4

// MaxOverhead returns the bytes that the mode may ever put in front of a packet for a backend of
// this address: Overhead, and with GUE the longest list of other candidates that it may carry. The
// packet size that clients are offered must leave room for all of it, so that a change never
// shrinks a live connection's packets.
func (m Mode) MaxOverhead(backend netip.Addr) int {
	overhead := m.Overhead(backend)
	switch {
	case m != GUE:
		return overhead
	case backend.Is4():
		return overhead + candidateListHeader + (MaxCandidates-1)*4
	}
	return overhead + candidateListHeader + (MaxCandidates6-1)*16
}
