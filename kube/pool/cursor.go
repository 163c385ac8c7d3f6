package pool

import (
	"cmp"
	"net/netip"
	"slices"
)

// cursors say for each pool and family where free addresses may be.
type cursors [][2]cursor

// cursor is a place in a pool. All addresses before it are taken, except the holes.
type cursor struct {
	at    place
	holes []place // in order
}

type place struct {
	part    int        // of the pool's ranges
	address netip.Addr // invalid: the part's first
}

func (p place) compare(other place) int {
	return cmp.Or(cmp.Compare(p.part, other.part), p.address.Compare(other.address))
}

func (c cursors) of(pool int, family Family) *cursor {
	if family == IPv6 {
		return &c[pool][1]
	}
	return &c[pool][0]
}

// first moves a cursor forward to the lowest free address of a pool, and returns it. Holes come
// first.
func (c cursors) first(pools []Pool, pool int, family Family, has func(netip.Addr) bool) (none netip.Addr, found bool) {
	p, cursor := &pools[pool], c.of(pool, family)
	for ; len(cursor.holes) > 0; cursor.holes = cursor.holes[1:] {
		if x := cursor.holes[0].address; !has(x) {
			return x, true
		}
	}
	at := &cursor.at
	for ; at.part < len(p.Addresses); *at = (place{part: at.part + 1}) {
		r := p.Addresses[at.part]
		if FamilyOf(r.First) != family {
			continue
		}
		if !at.address.IsValid() {
			at.address = r.First
		}
		for ; at.address.IsValid() && r.Contains(at.address); at.address = at.address.Next() {
			if !p.avoids(at.address) && !has(at.address) {
				return at.address, true
			}
		}
	}
	return none, false
}

// free lets an address that a cursor has passed be found again.
func (c cursors) free(pools []Pool, x netip.Addr) {
	for i := range pools {
		cursor := c.of(i, FamilyOf(x))
		for part, r := range pools[i].Addresses {
			hole := place{part, x}
			if !r.Contains(x) || pools[i].avoids(x) || hole.compare(cursor.at) >= 0 {
				continue
			}
			if at, is := slices.BinarySearchFunc(cursor.holes, hole, place.compare); !is {
				cursor.holes = slices.Insert(cursor.holes, at, hole)
			}
		}
	}
}
