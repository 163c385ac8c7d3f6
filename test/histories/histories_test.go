package histories

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
)

var (
	first = flag.Uint64("first", 0, "the seed of the first history")
	seeds = flag.Uint64("seeds", 0, "how many histories there are of each kind; 0: enough")
)

// enough is how many histories show everything that they must.
var enough = map[kind]uint64{tcp: 6, udp: 3, quic: 2, tiers: 3}

// TestHistories: whatever happens to a service, whichever changes each director has seen, and
// whatever its hosts have, the programs do what the twin says. A packet of a connection ends in the
// kernel that has the connection, with the exceptions of docs/internals/consistency.md. So do datagrams of a
// UDP flow, and of a QUIC connection.
func TestHistories(t *testing.T) {
	l := newLab(t)
	for number, of := range []kind{tcp, udp, quic, tiers} {
		histories := *seeds
		if histories == 0 {
			histories = enough[of]
		}
		all, played := &tally{}, uint64(0)
		for seed := *first; seed < *first+histories; seed++ {
			t.Run(fmt.Sprint(of, "/seed ", seed), func(t *testing.T) {
				if newLife(t, l, of, rand.New(rand.NewPCG(41+uint64(number), seed)), all).run(30, 40) {
					played++ // to the end: a history that was too slow shows less
				}
			})
		}
		t.Logf("%s: %+v", of, *all)
		if played >= enough[of] && !all.suffices(of) {
			t.Errorf("the histories of %s show too little", of)
		}
	}
	t.Run("all that are left drain", func(t *testing.T) { testDrained(t, l) })
	t.Run("a SYN is sent again while its slot moves", func(t *testing.T) { testResent(t, l) })
	t.Run("a SYN is sent again while its slot moves, without agents", func(t *testing.T) { testResentAlone(t, l) })
}

// suffices reports whether everything has happened that must be shown.
func (is *tally) suffices(of kind) bool {
	switch {
	case is.passed < is.walked/100 || is.walked < 1000 || is.opened < 100 || is.restarted == 0 || is.lost == 0:
		return false
	case of == tiers:
		return is.switched > 20 && is.crowdedOut < is.walked/50
	case of == tcp:
		return is.cookies > 0 && is.resent > 0 && is.rehashed > 0 && is.held > 0 && is.chosen > 0
	}
	return of != quic || is.relayed > 0
}

// FuzzHistories does the same with other histories.
func FuzzHistories(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	l := newLab(f)
	f.Fuzz(func(t *testing.T, a, b uint64) {
		newLife(t, l, []kind{tcp, udp, quic, tiers}[a%4], rand.New(rand.NewPCG(a, b)), &tally{}).run(30, 40)
	})
}
