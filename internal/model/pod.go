package model

import (
	"hash/crc32"
	"net/netip"
)

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
