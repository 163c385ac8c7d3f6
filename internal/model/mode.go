package model

import (
	"hash/crc32"
	"net/netip"
)

// Mode is how a packet reaches its backend. The numbers are those of the BPF
// programs (enum mode in bpf/abi/types.h).
type Mode uint8

// The forwarding modes.
const (
	L2DSR    Mode = iota // rewrite the destination MAC; the backend answers directly
	IPIP                 // add an outer IP header
	GUE                  // add an outer IP, UDP and GUE header
	NAT                  // rewrite the destination; replies come back through a director
	Redirect             // hand the connection over at its SYN
)

var modeNames = names[Mode]{kind: "mode", list: []name[Mode]{{L2DSR, "l2dsr"}, {IPIP, "ipip"}, {GUE, "gue"}, {NAT, "nat"}, {Redirect, "redirect"}}}

// String returns the name that YAML, JSON and metrics use.
func (m Mode) String() string { return modeNames.text(m) }

// Names returns all names.
func (Mode) Names() []string { return modeNames.texts() }

// MarshalText writes the name that YAML, JSON and metrics use.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (m *Mode) UnmarshalText(text []byte) error { return modeNames.read(m, text) }

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

// A backend with a host is a pod or container: packets reach it by the agent of its host,
// which sends them on to the pod's address and port. See docs/internals/datapath.md.

// PodName tells the pods of a service on one host apart, on the wire between directors and agents:
// both compute it from the pod's address and port (0: the packet's own). If two have the same name,
// one chance in four thousand million, one gets the other's new connections.
func PodName(pod netip.AddrPort) uint32 {
	address, port := pod.Addr().As16(), pod.Port()
	return crc32.ChecksumIEEE(append(address[:], byte(port>>8), byte(port)))
}

// PodIn returns the address and port at which a backend with a host gets the packets of a
// service; port 0: at the packet's own.
func (b *Backend) PodIn(s *Service) netip.AddrPort {
	return netip.AddrPortFrom(b.Address, b.portIn(s))
}

// TunnelEnd returns the address that packets for a backend are sent to: in gue its host's, if it
// has a host.
func (m Mode) TunnelEnd(backend, host netip.Addr) netip.Addr {
	if m == GUE && host.IsValid() {
		return host
	}
	return backend
}

// MaxOverheadIn returns what Mode.MaxOverhead does, for this backend of a service.
func (b *Backend) MaxOverheadIn(s *Service) int {
	return maxOverhead(b.ModeIn(*s), b.Address, b.Host)
}

// MaxOverhead returns what Mode.MaxOverhead does, for this backend.
func (b *TableBackend) MaxOverhead() int { return maxOverhead(b.Mode, b.Address, b.Host) }

// TunnelEnd returns the address that packets for the backend are sent to.
func (b *TableBackend) TunnelEnd() netip.Addr { return b.Mode.TunnelEnd(b.Address, b.Host) }

// maxOverhead leaves room, in gue, for the longest row of pods: all candidates, each with the
// name of a pod.
func maxOverhead(m Mode, backend, host netip.Addr) int {
	if m != GUE || !host.IsValid() {
		return m.MaxOverhead(backend)
	}
	candidates := MaxCandidates
	if host.Is6() {
		candidates = MaxCandidates6
	}
	return m.Overhead(host) + candidateListHeader + candidates*podCandidate(host)
}

// minOverhead is how many bytes are always in front of a packet.
func minOverhead(m Mode, backend, host netip.Addr) int {
	if m != GUE || !host.IsValid() {
		return m.Overhead(backend)
	}
	return m.Overhead(host) + candidateListHeader + podCandidate(host)
}

// podCandidate is how many bytes a candidate of a row of pods takes.
func podCandidate(host netip.Addr) int { return host.BitLen()/8 + podNameLength }

// podNameLength is the length of a pod's name.
const podNameLength = 4

func modeProblem(m Mode) string {
	switch m {
	case L2DSR, IPIP, GUE, NAT, Redirect:
		return ""
	}
	return m.String() + " is not a mode (l2dsr, ipip, gue, nat or redirect)"
}
