package model

// MaxRingSize is the largest ring: the largest prime below 2^20.
const MaxRingSize = 1048573

// The smallest default ring, and the slots per backend of larger ones: a
// backend's share is then within 1 % of its weight, or one slot.
const (
	minDefaultRing  = 1021
	slotsPerBackend = 100
)

// A ring is made of lines of 64 bytes: a header, and the slots eight to a line
// (bpf/abi/types.h).
const (
	ringLine     = 64
	slotsPerLine = 8
)

// DefaultRingSize returns the slots of a service that does not say how many: the
// smallest prime that is at least 100 per backend and at least 1,021. It is what
// maglev.DefaultSize returns: neither package may import the other.
func DefaultRingSize(backends int) uint32 {
	return nextPrime(uint32(max(minDefaultRing, backends*slotsPerBackend)))
}

// ringMemory returns the bytes of a ring without lists.
func ringMemory(slots uint32) uint64 {
	return ringLine + ringLine*((uint64(slots)+slotsPerLine-1)/slotsPerLine)
}

// quicMemory returns the bytes that a ring takes for connection IDs: configurations of four lines,
// and the smallest table of server IDs, three to a line. The table may be larger, depending on
// their hashes.
func quicMemory(s *Service) uint64 {
	if len(s.QUIC) == 0 {
		return 0
	}
	lines := 1
	for 3*lines < len(s.QUIC)*len(s.Backends) {
		lines *= 2
	}
	return ringLine * uint64(4*QUICConfigs+lines)
}

// nextPrime returns the smallest prime that is not below n.
func nextPrime(n uint32) uint32 {
	for !isPrime(n) {
		n++
	}
	return n
}

func isPrime(n uint32) bool {
	if n < 4 {
		return n >= 2
	}
	if n%2 == 0 {
		return false
	}
	for d := uint32(3); uint64(d)*uint64(d) <= uint64(n); d += 2 {
		if n%d == 0 {
			return false
		}
	}
	return true
}
