package group

import (
	"hash/fnv"
	"net/netip"
)

// Answers reports whether a node is the one of the directors that answers for a VIP by ARP and NDP:
// each VIP has one such node, and moves only when that node is gone, or to a node that comes
// (rendezvous hashing).
func Answers(node string, directors []string, vip netip.Addr) bool {
	best, most := "", uint64(0)
	for _, d := range directors {
		if score := score(d, vip); best == "" || score > most || score == most && d < best {
			best, most = d, score
		}
	}
	return best == node && node != ""
}

func score(node string, vip netip.Addr) uint64 {
	h := fnv.New64a()
	h.Write(vip.AsSlice()) // it never fails
	h.Write([]byte(node))
	// FNV's high bits hardly depend on the last bytes: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
