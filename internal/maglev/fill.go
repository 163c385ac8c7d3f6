package maglev

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// member is a Member with its permutation of the slots: offset, offset + skip,
// offset + 2 skip, ... modulo the (prime) size.
type member struct {
	position uint32 // in the caller's list
	weight   uint64
	offset   uint32
	skip     uint32 // 1 to size-1
}

// fill is one ring in the making.
type fill struct {
	size    uint32
	members []member // those with a weight, in the order of their keys
	turns   []uint32 // the member of each of the size turns
}

func newFill(size uint32, members []Member) *fill {
	if size > MaxSize || !IsPrime(size) {
		panic(fmt.Sprintf("maglev: ring size %d is not a prime of at most %d", size, MaxSize))
	}
	f := &fill{size: size, members: make([]member, 0, len(members))}
	for i, m := range members {
		if m.Weight == 0 {
			continue
		}
		sum := sha256.Sum256([]byte(m.Key))
		f.members = append(f.members, member{
			position: uint32(i),
			weight:   uint64(m.Weight),
			offset:   uint32(binary.LittleEndian.Uint64(sum[:8]) % uint64(size)),
			skip:     uint32(binary.LittleEndian.Uint64(sum[8:16])%uint64(size-1)) + 1,
		})
	}
	if len(f.members) == 0 {
		return nil
	}
	slices.SortFunc(f.members, func(a, b member) int {
		return strings.Compare(members[a.position].Key, members[b.position].Key)
	})
	f.turns = f.order()
	return f
}

// order returns the member of each turn.
func (f *fill) order() []uint32 {
	order := make([]uint32, f.size)
	if f.equalWeights() {
		m := 0
		for t := range order {
			order[t] = uint32(m)
			if m++; m == len(f.members) {
				m = 0
			}
		}
		return order
	}
	turns := make([]turn, len(f.members))
	for m := range turns {
		turns[m] = turn{number: 1, weight: f.members[m].weight, member: uint32(m)}
	}
	s := newSchedule(turns)
	for t := range order {
		order[t] = s.next()
	}
	return order
}

func (f *fill) equalWeights() bool {
	return !slices.ContainsFunc(f.members, func(m member) bool { return m.weight != f.members[0].weight })
}

// run plays all turns and returns the slot that each took. It notes in failed,
// unless that is nil, every slot that a member found taken.
func (f *fill) run(failed *probes) []uint32 {
	claims := make([]uint32, f.size)
	taken := make([]uint64, f.size/64+1)
	position := make([]uint32, len(f.members))
	for m := range position {
		position[m] = f.members[m].offset
	}
	for t, m := range f.turns {
		p, skip := position[m], f.members[m].skip
		for taken[p/64]>>(p%64)&1 != 0 {
			if failed != nil {
				failed.slots = append(failed.slots, p)
			}
			p = f.step(p, skip)
		}
		taken[p/64] |= 1 << (p % 64)
		claims[t] = p
		position[m] = f.step(p, skip)
		if failed != nil {
			failed.ends = append(failed.ends, uint32(len(failed.slots)))
		}
	}
	return claims
}

func (f *fill) step(p, skip uint32) uint32 {
	if p += skip; p >= f.size {
		p -= f.size
	}
	return p
}

// owners translates the slot of each turn into the member of each slot.
func (f *fill) owners(claims []uint32) []uint32 {
	owners := make([]uint32, f.size)
	for t, slot := range claims {
		owners[slot] = f.turns[t]
	}
	return owners
}

// positions replaces members by their positions in the caller's list, in place.
func (f *fill) positions(slots []uint32) []uint32 {
	for s, m := range slots {
		if m != None {
			slots[s] = f.members[m].position
		}
	}
	return slots
}

// inverse returns the x with skip * x = 1 modulo the size: skip^(size-2), by
// Fermat's little theorem.
func (f *fill) inverse(skip uint32) uint64 {
	size := uint64(f.size)
	x, power := uint64(1), uint64(skip)
	for e := size - 2; e > 0; e >>= 1 {
		if e&1 != 0 {
			x = x * power % size
		}
		power = power * power % size
	}
	return x
}

// refillMembers is the largest number of members for which a fill without each is cheaper than a
// replay (BenchmarkBackups).
const refillMembers = 32

// refill returns owners and backups as replay does, from the ring without each
// member.
func (f *fill) refill() (owners, backups []uint32) {
	owners = f.owners(f.run(nil))
	backups = make([]uint32, f.size)
	for gone := range f.members {
		steps.Add(1)
		rest := f.without(gone)
		for slot, owner := range owners {
			if owner == uint32(gone) {
				backups[slot] = rest[slot]
			}
		}
	}
	return owners, backups
}

// without returns the owners of the slots in the ring without a member.
func (f *fill) without(gone int) []uint32 {
	if len(f.members) == 1 {
		return slices.Repeat([]uint32{None}, int(f.size))
	}
	rest := &fill{size: f.size, members: slices.Delete(slices.Clone(f.members), gone, gone+1)}
	rest.turns = rest.order()
	owners := rest.owners(rest.run(nil))
	for slot, m := range owners {
		if m >= uint32(gone) {
			owners[slot]++
		}
	}
	return owners
}
