package maglev

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// slotOf is how a hash finds its slot, in a table of any size.
func slotOf(hash uint32, size int) int { return int(uint64(hash) * uint64(size) >> 32) }

// TestSlotsOfOtherSizes looks rings up by hash: what the newest one says is what the
// table says, and the owners of all others are in the row.
func TestSlotsOfOtherSizes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		var log []Generation
		for range 2 + r.IntN(2) {
			log = append(log, randomGeneration(r, int(randomPrime(r, 60)), historyMembers, nil))
		}
		table := Rows(log, nil, historyMembers)
		if table.Held != 0 || len(table.Slots)%len(log[0].Owners) != 0 {
			t.Fatalf("%d of %d slots are held, the newest ring has %d", table.Held, len(table.Slots), len(log[0].Owners))
		}
		for range 500 {
			hash := r.Uint32()
			row := table.candidates(slotOf(hash, len(table.Slots)))
			newest := slotOf(hash, len(log[0].Owners))
			if row[0] != log[0].Owners[newest] || len(row) > 1 && row[1] != log[0].Backups[newest] {
				t.Fatalf("hash %#x: the row is %v, in the newest ring its owner is %d and its backup %d",
					hash, row, log[0].Owners[newest], log[0].Backups[newest])
			}
			for _, g := range log[1:] {
				s := slotOf(hash, len(g.Owners))
				if !slices.Contains(row, g.Owners[s]) || !slices.Contains(row, g.Backups[s]) {
					t.Fatalf("hash %#x: the row is %v, an older ring of %d slots says %d and then %d",
						hash, row, len(g.Owners), g.Owners[s], g.Backups[s])
				}
			}
		}
	}
}

func TestBordersAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		size := 1 + r.Uint64N(MaxSize)
		slot := r.Uint64N(size)
		first := firstHash(slot, size)
		if first*size>>32 != slot || first > 0 && (first-1)*size>>32 != slot-1 {
			t.Fatalf("slot %d of %d does not begin at hash %#x", slot, size, first)
		}
	}
}

func TestEqualSizesAreNotCopied(t *testing.T) {
	log := []Generation{{Owners: []uint32{1, 2}, Backups: []uint32{2, 1}}, {Owners: []uint32{3, 2}, Backups: []uint32{2, 3}}}
	layers := layersOf(log, tableSize(log, nil))
	if len(layers) != 2 || &layers[1].Owners[0] != &log[1].Owners[0] {
		t.Error("rings of one size became others")
	}
}

func BenchmarkRows(b *testing.B) {
	ring := func(members int, size uint32) Generation {
		owners, backups := RingAndBackups(size, benchMembers(members, false))
		return Generation{Owners: owners, Backups: backups}
	}
	for name, log := range map[string][]Generation{
		"generations=1":            {ring(64, 6421)},
		"generations=3":            {ring(66, 6421), ring(65, 6421), ring(64, 6421)},
		"generations=3/other-size": {ring(66, 6607), ring(65, 6421), ring(64, 6421)},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Rows(log, nil, 8)
			}
		})
	}
}
