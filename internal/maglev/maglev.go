// Package maglev decides which member of a service owns each slot of its ring, which one takes the
// slot when that member goes, and which members a slot's packets may belong to after changes (its
// row).
//
// All of it is a pure function of its arguments: every director computes the
// same bytes, on every machine and in every run.
//
// The ring is that of Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer"
// (NSDI 2016), section 3.4, with weighted turns: members take turns, and at its turn a member takes
// the free slot that it likes best.
package maglev

import "sync/atomic"

// None, in place of a member's position, says that there is no member.
const None = ^uint32(0)

// Member is a backend that may own slots.
type Member struct {
	// Key is hashed: two rings agree about a member if its keys are equal. The keys of one ring are
	// distinct.
	Key string
	// Weight is the member's share of the slots, relative to the others'. A member of weight 0 owns
	// no slots.
	Weight uint16
}

// Ring returns the owner of each slot, as a position in members; nil if no member has a weight. The
// size must be a prime of at most [MaxSize]: Ring panics at any other. The order of members changes
// only the positions.
//
// A member owns at least its exact share rounded down, and at most that share
// times 1 + len(members)/size.
//
// When one of n members of equal weight goes, in rings of [DefaultSize], some slots of the others
// move, too: on average 0.7 % of them at n = 3, 2.8 % at 10 (the most), 2.0 % at 64, 0.6 % at
// 1,000. In small rings single removals can move several times that, when two members' skips are
// small multiples of each other.
func Ring(size uint32, members []Member) []uint32 {
	f := newFill(size, members)
	if f == nil {
		return nil
	}
	return f.positions(f.owners(f.run(nil)))
}

// steps counts the members whose backups have been worked out.
var steps atomic.Uint64

// Steps grows while rings are made: those of many members take minutes, and what waits for them learns
// by it that they go on.
func Steps() uint64 { return steps.Load() }

// RingAndBackups returns the owner of each slot as [Ring] does, and its backup: the owner that the
// slot would have in the ring without its owner. When that owner leaves, the slot moves exactly
// there. Without a second member the backups are [None].
func RingAndBackups(size uint32, members []Member) (owners, backups []uint32) {
	f := newFill(size, members)
	if f == nil {
		return nil, nil
	}
	if len(f.members) <= refillMembers {
		owners, backups = f.refill()
	} else {
		owners, backups = f.replay()
	}
	return f.positions(owners), f.positions(backups)
}

// MaxSize bounds a ring: 2^24 slots are enough for 160,000 members.
const MaxSize = 1 << 24

const (
	slotsPerMember = 100 // one slot is then at most 1 % of an equal share
	minDefaultSize = 1021
)

// DefaultSize returns the default size of a ring of n members: the smallest prime that is at least
// 100 n and at least 1,021.
func DefaultSize(n int) uint32 {
	size := max(uint32(n)*slotsPerMember, minDefaultSize)
	for !IsPrime(size) {
		size++
	}
	return size
}

// IsPrime reports whether n can be the size of a ring. In a ring of composite
// size a member's permutation would not reach every slot.
func IsPrime(n uint32) bool {
	if n < 2 || n%2 == 0 {
		return n == 2
	}
	for d := uint64(3); d*d <= uint64(n); d += 2 {
		if uint64(n)%d == 0 {
			return false
		}
	}
	return true
}
