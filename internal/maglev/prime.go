package maglev

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
