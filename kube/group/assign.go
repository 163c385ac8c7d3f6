package group

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
)

// Candidate is a node that runs a director of the group, by what it says of itself.
type Candidate struct {
	Presence
	Gone   bool // nothing has been heard of the node lately
	Report Report
	Counts Counts
	Others Others
}

// Assign returns which nodes are the directors of a group that wants so many, in order, and how
// many could take the place of one. A node that is a director stays one, so that nothing moves
// without need: when a director is unfit or gone, another node takes its place, the first by name.
// If no node is fit, those that were directors stay: a node that is cordoned forwards better than
// none.
func Assign(want int, directors []string, candidates []Candidate) (chosen []Candidate, standby int) {
	known := map[string]Candidate{}
	fit := 0
	for _, c := range candidates {
		known[c.Node] = c
		if c.fit() {
			fit++
		}
	}
	taken := map[string]bool{}
	take := func(c Candidate) {
		if len(chosen) < want && !taken[c.Node] {
			taken[c.Node] = true
			chosen = append(chosen, c)
		}
	}
	for _, node := range directors {
		if c, is := known[node]; is && (c.fit() || fit == 0) {
			take(c)
		}
	}
	others := slices.SortedFunc(slices.Values(candidates), func(a, b Candidate) int { return cmp.Compare(a.Node, b.Node) })
	for _, c := range others {
		if c.fit() {
			take(c)
		}
	}
	for _, c := range chosen {
		if c.fit() {
			fit--
		}
	}
	return chosen, fit
}

// Has reports whether the candidate has an address of a family.
func (c *Candidate) Has(six bool) bool {
	return slices.ContainsFunc(c.Addresses, func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && a.Is6() == six
	})
}

func (c *Candidate) fit() bool { return c.Unfit == "" && !c.Gone }

// VIP is an address in a segment; the zero segment: it is in none.
type VIP struct {
	Segment model.Segment
	Address netip.Addr
}

// String returns the address, behind its segment if it has one: "vlan:7 10.0.0.1".
func (v VIP) String() string {
	if v.Segment == (model.Segment{}) {
		return v.Address.String()
	}
	return v.Segment.String() + " " + v.Address.String()
}

// ParseVIP reads what String returns.
func ParseVIP(text string) (v VIP, err error) {
	if in, address, found := strings.Cut(text, " "); found {
		if err := v.Segment.UnmarshalText([]byte(in)); err != nil {
			return v, err
		}
		text = address
	}
	v.Address, err = netip.ParseAddr(text)
	return v, err
}

// Compare orders VIPs.
func (v VIP) Compare(o VIP) int {
	return cmp.Or(v.Segment.Compare(o.Segment), v.Address.Compare(o.Address))
}

// Answers reports whether a node is the one of the directors that answers for a VIP by ARP and NDP:
// each VIP has one such node, and moves only when that node is gone, or to a node that comes
// (rendezvous hashing).
func Answers(node string, directors []string, vip VIP) bool {
	best, most := "", uint64(0)
	for _, d := range directors {
		if score := score(d, vip); best == "" || score > most || score == most && d < best {
			best, most = d, score
		}
	}
	return best == node && node != ""
}

func score(node string, vip VIP) uint64 {
	h := fnv.New64a()
	h.Write(vip.Address.AsSlice())        // it never fails
	if vip.Segment != (model.Segment{}) { // else versions that know of no segments would have another answer
		h.Write(binary.BigEndian.AppendUint32(nil, vip.Segment.Key()))
	}
	h.Write([]byte(node))
	// FNV's high bits hardly depend on the last bytes: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
