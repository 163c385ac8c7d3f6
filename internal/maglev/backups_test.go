package maglev

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomMembers returns n members with random keys and weights: equal ones,
// small ones, or any.
func randomMembers(r *rand.Rand, n int) []Member {
	most := []int{1, 4, 100, 65535}[r.IntN(4)]
	members := make([]Member, n)
	for i := range members {
		members[i] = Member{Key: fmt.Sprintf("%d-%x", i, r.Uint64()), Weight: uint16(1 + r.IntN(most))}
		if most > 1 && r.IntN(10) == 0 {
			members[i].Weight = 0
		}
	}
	return members
}

func randomPrime(r *rand.Rand, most int) uint32 {
	size := uint32(2 + r.IntN(most))
	for !IsPrime(size) {
		size++
	}
	return size
}

// without returns the members with one of them taken out of the game. Its place
// stays, so that positions stay.
func without(members []Member, i int) []Member {
	rest := slices.Clone(members)
	rest[i].Weight = 0
	return rest
}

// checkBackups compares every backup, however it was found, with the ring that is
// really built without the slot's owner.
func checkBackups(t *testing.T, size uint32, members []Member) {
	t.Helper()
	owners := Ring(size, members)
	if owners == nil {
		return
	}
	want := slices.Repeat([]uint32{None}, int(size))
	for m := range members {
		if rest := Ring(size, without(members, m)); rest != nil {
			for slot, owner := range owners {
				if owner == uint32(m) {
					want[slot] = rest[slot]
				}
			}
		}
	}
	f := newFill(size, members)
	for way, find := range map[string]func() (owners, backups []uint32){"refill": f.refill, "replay": f.replay} {
		gotOwners, gotBackups := find()
		if !slices.Equal(f.positions(gotOwners), owners) {
			t.Fatalf("%s: size %d, members %v: the owners are not those of Ring", way, size, members)
		}
		for slot, got := range f.positions(gotBackups) {
			if got != want[slot] {
				t.Fatalf("%s: size %d, members %v: slot %d of member %d has backup %d, without its owner it is %d's",
					way, size, members, slot, owners[slot], int32(got), int32(want[slot]))
			}
		}
	}
}

func TestBackupsAreTheRingsWithoutTheOwner(t *testing.T) {
	for _, test := range []struct{ rings, size, members int }{
		{600, 40, 12}, // also fewer slots than members
		{200, 3000, 50},
		{3, 20000, 250},
	} {
		r := rand.New(rand.NewPCG(1, uint64(test.size)))
		for range test.rings {
			checkBackups(t, randomPrime(r, test.size), randomMembers(r, 1+r.IntN(test.members)))
		}
	}
}

func TestRingAndBackups(t *testing.T) {
	for _, n := range []int{1, 2, refillMembers, refillMembers + 1} {
		members := benchMembers(n, true)
		owners, backups := RingAndBackups(4099, members)
		if !slices.Equal(owners, Ring(4099, members)) {
			t.Errorf("%d members: the owners are not those of Ring", n)
		}
		for slot, backup := range backups {
			if backup == owners[slot] || n > 1 && int(backup) >= n || n == 1 && backup != None {
				t.Fatalf("%d members: slot %d of member %d has backup %d", n, slot, owners[slot], int32(backup))
			}
		}
	}
	if owners, backups := RingAndBackups(7, []Member{{"a", 0}}); owners != nil || backups != nil {
		t.Error("a ring of nobody has slots")
	}
}
