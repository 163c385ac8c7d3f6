package maglev

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

// textbook is the pseudo code of section 3.4 of the paper, with nothing left out:
// whole permutation tables, and members that take turns.
func textbook(size int, keys []string) []string {
	keys = slices.Clone(keys)
	sort.Strings(keys)
	permutation := make([][]int, len(keys))
	for i, key := range keys {
		sum := sha256.Sum256([]byte(key))
		mod := func(b []byte, m int) int {
			slices.Reverse(b)
			return int(new(big.Int).Mod(new(big.Int).SetBytes(b), big.NewInt(int64(m))).Int64())
		}
		offset, skip := mod(sum[:8], size), mod(sum[8:16], size-1)+1
		for j := range size {
			permutation[i] = append(permutation[i], (offset+j*skip)%size)
		}
	}
	entry, next := make([]string, size), make([]int, len(keys))
	for n := 0; ; {
		for i, key := range keys {
			c := permutation[i][next[i]]
			for entry[c] != "" {
				next[i]++
				c = permutation[i][next[i]]
			}
			entry[c] = key
			next[i]++
			if n++; n == size {
				return entry
			}
		}
	}
}

func TestEqualWeightsAreTheTextbookRing(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		members := make([]Member, 1+r.IntN(40))
		keys := make([]string, len(members))
		weight := uint16(1 + r.IntN(math.MaxUint16))
		for i := range members {
			keys[i] = fmt.Sprintf("%x:%d", r.Uint64(), i)
			members[i] = Member{keys[i], weight}
		}
		size := randomPrime(r, 2000)
		want := textbook(int(size), keys)
		for slot, m := range Ring(size, members) {
			if keys[m] != want[slot] {
				t.Fatalf("size %d, members %v: slot %d is %s's, in the textbook's ring it is %s's", size, keys, slot, keys[m], want[slot])
			}
		}
	}
}

// TestScheduleIsExact compares the turns with virtual times in rational numbers.
func TestScheduleIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		members := randomMembers(r, 1+r.IntN(30))
		f := newFill(randomPrime(r, 500), members)
		if f == nil {
			continue
		}
		numbers := make([]int64, len(f.members))
		for turn, got := range f.turns {
			best, at := 0, (*big.Rat)(nil)
			for m := range f.members {
				time := big.NewRat(numbers[m]+1, int64(f.members[m].weight))
				if at == nil || time.Cmp(at) < 0 {
					best, at = m, time
				}
			}
			if int(got) != best {
				t.Fatalf("members %v: turn %d is member %d's, it should be %d's", members, turn, got, best)
			}
			numbers[best]++
		}
	}
}

func TestOrderOfMembersDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 30 {
		members := randomMembers(r, 1+r.IntN(60))
		size := randomPrime(r, 2000)
		shuffled := slices.Clone(members)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		owners, backups := RingAndBackups(size, members)
		owners2, backups2 := RingAndBackups(size, shuffled)
		for slot := range owners {
			if members[owners[slot]] != shuffled[owners2[slot]] ||
				backups[slot] != None && members[backups[slot]] != shuffled[backups2[slot]] {
				t.Fatalf("slot %d depends on the order of members", slot)
			}
		}
	}
}

// TestRingNeverChanges holds the ring's bytes: directors of different versions
// work together, so another ring is an incompatible change.
func TestRingNeverChanges(t *testing.T) {
	for _, test := range []struct {
		weighted bool
		want     string
	}{
		{false, "6be9be6524820f51c1a0a05930aa603dc5f04bf70a9adc72dc752aee1e5baeb3"},
		{true, "5de5fc8a3bbb6b91880505a2b6422dec2984c736c46c9750648ec0df72a721dd"},
	} {
		owners, backups := RingAndBackups(10007, benchMembers(100, test.weighted))
		hash := sha256.New()
		if err := binary.Write(hash, binary.LittleEndian, owners); err != nil {
			t.Fatal(err)
		}
		if err := binary.Write(hash, binary.LittleEndian, backups); err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(hash.Sum(nil)); got != test.want {
			t.Errorf("weighted %v: the ring's hash is %s, it was %s", test.weighted, got, test.want)
		}
	}
}

// counts returns how many slots each of n members owns.
func counts(owners []uint32, n int) []int {
	c := make([]int, n)
	for _, m := range owners {
		c[m]++
	}
	return c
}

func checkShares(t *testing.T, members []Member, within func(got, want float64) bool) {
	t.Helper()
	total := 0.0
	for _, m := range members {
		total += float64(m.Weight)
	}
	size := DefaultSize(len(members))
	for m, got := range counts(Ring(size, members), len(members)) {
		want := float64(size) * float64(members[m].Weight) / total
		if !within(float64(got), want) {
			t.Errorf("%d members: number %d of weight %d owns %d slots, its exact share is %.2f",
				len(members), m, members[m].Weight, got, want)
		}
	}
}

func TestSharesFollowWeights(t *testing.T) {
	within := func(got, want float64) bool {
		return math.Abs(got-want) <= max(1, want/100)
	}
	r := rand.New(rand.NewPCG(9, 10))
	for n := 2; n <= 1000; n += 1 + n/8 {
		checkShares(t, benchMembers(n, false), within)
		checkShares(t, benchMembers(n, true), within)
		members := randomMembers(r, n)
		members[0].Weight = math.MaxUint16
		checkShares(t, members, within)
	}
}

func TestNobodyAndOne(t *testing.T) {
	if Ring(7, nil) != nil || Ring(7, []Member{{"a", 0}}) != nil {
		t.Error("a ring of nobody has slots")
	}
	if got := Ring(7, []Member{{"a", 0}, {"b", 3}}); !slices.Equal(got, slices.Repeat([]uint32{1}, 7)) {
		t.Errorf("the ring of one member is %v", got)
	}
	if got := counts(Ring(2, []Member{{"a", 1}, {"b", 1}}), 2); !slices.Equal(got, []int{1, 1}) {
		t.Errorf("in a ring of two slots two members own %v", got)
	}
}

// moved returns which share of the slots that were not m's has another owner
// without m.
func moved(size uint32, members []Member, owners []uint32, m int) float64 {
	others, moved := 0, 0
	for slot, owner := range Ring(size, without(members, m)) {
		if owners[slot] == uint32(m) {
			continue
		}
		others++
		if owner != owners[slot] {
			moved++
		}
	}
	return float64(moved) / float64(max(others, 1))
}

// TestRemovalMovesFewOtherSlots averages over members and over keys: with 100
// slots per member, a single removal may be half as far again from the mean.
func TestRemovalMovesFewOtherSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	worst, worstMean := 0.0, 0.0
	for _, n := range []int{2, 3, 5, 8, 10, 11, 12, 15, 20, 30, 50, 100, 200, 400, 1000} {
		removals := max(8, 800/n)
		size := DefaultSize(n)
		sum := 0.0
		for range removals {
			members := randomMembers(r, n)
			gone := r.IntN(n)
			share := moved(size, members, Ring(size, members), gone)
			worst = max(worst, share)
			sum += share
		}
		mean := sum / float64(removals)
		worstMean = max(worstMean, mean)
		if mean > 0.03 {
			t.Errorf("%d members: without one of them, %.2f %% of the others' slots move", n, 100*mean)
		}
	}
	t.Logf("of the others' slots move at most %.2f %% on average, %.2f %% once", 100*worstMean, 100*worst)
}

func TestDefaultSize(t *testing.T) {
	for n, want := range map[int]uint32{0: 1021, 1: 1021, 10: 1021, 11: 1103, 64: 6421, 1000: 100003, 4000: 400009} {
		if got := DefaultSize(n); got != want {
			t.Errorf("DefaultSize(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestIsPrime(t *testing.T) {
	check := func(n uint32) {
		if got, want := IsPrime(n), big.NewInt(int64(n)).ProbablyPrime(0); got != want {
			t.Errorf("IsPrime(%d) = %v", n, got)
		}
	}
	for n := range uint32(5000) {
		check(n)
	}
	for _, n := range []uint32{65521 * 65521 % math.MaxUint32, 65521 * 65519, math.MaxUint32, math.MaxUint32 - 4} {
		check(n)
	}
}

func TestRingRefusesSizesThatAreNoPrimes(t *testing.T) {
	for _, size := range []uint32{0, 1, 1000, MaxSize + 43} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Ring took size %d", size)
				}
			}()
			Ring(size, []Member{{"a", 1}})
		}()
	}
}
