package histories

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
)

var (
	first = flag.Uint64("first", 0, "the seed of the first history")
	seeds = flag.Uint64("seeds", enough, "how many histories there are")
)

// enough histories show everything that they are for.
const enough = 6

// TestHistories: whatever happens to a service, whichever director sees what of it, and
// whatever its hosts' kernels have, the programs do what the twin says, and a packet of a
// connection ends in the kernel that has it, with the exceptions of docs/consistency.md.
func TestHistories(t *testing.T) {
	l, all := newLab(t), &tally{}
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			newLife(t, l, rand.New(rand.NewPCG(41, seed)), all).run(30, 40)
		})
	}
	t.Run("all that are left drain", func(t *testing.T) { testDrained(t, l) })
	t.Logf("%+v", *all)
	if *seeds < enough {
		return // it is some of them again
	}
	if all.passed < all.walked/100 || all.walked < 1000 || all.opened < 100 || all.cookies == 0 || all.resent == 0 ||
		all.rehashed == 0 || all.held == 0 || all.chosen == 0 || all.restarted == 0 || all.lost == 0 {
		t.Errorf("the histories show too little: %+v", *all)
	}
}

// FuzzHistories does the same with other histories.
func FuzzHistories(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	l := newLab(f)
	f.Fuzz(func(t *testing.T, a, b uint64) {
		newLife(t, l, rand.New(rand.NewPCG(a, b)), &tally{}).run(30, 40)
	})
}
