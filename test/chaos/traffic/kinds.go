package traffic

import (
	"math/rand/v2"
	"time"
)

// sizes and pauses are ranges from which values are drawn.
type (
	sizes  struct{ least, most int }
	pauses struct{ least, most time.Duration }
)

func (s sizes) draw(rng *rand.Rand) int { return s.least + rng.IntN(s.most-s.least+1) }

func (p pauses) draw(rng *rand.Rand) time.Duration {
	return p.least + time.Duration(rng.Int64N(int64(p.most-p.least)+1))
}

// kind is what a connection does: how much it sends and gets, and how long it pauses in between.
// life is zero if the connection stays until the run's end.
type kind struct {
	name  string
	share int // of a hundred connections
	up    sizes
	down  sizes
	pause pauses
	life  pauses
}

// kinds returns the kinds of a run's connections. An idle one is silent for up to two drain
// windows: longer than any generation stays in a log.
func kinds(window time.Duration) []kind {
	return []kind{
		{name: "idle", share: 35, up: sizes{16, 64}, down: sizes{16, 64}, pause: pauses{window / 2, 2 * window}},
		{name: "request", share: 59, up: sizes{64, 1400}, down: sizes{64, 6000},
			pause: pauses{500 * time.Millisecond, 2500 * time.Millisecond}},
		{name: "bulk", share: 3, up: sizes{16 << 10, 48 << 10}, down: sizes{32 << 10, 96 << 10},
			pause: pauses{500 * time.Millisecond, 1500 * time.Millisecond}},
		{name: "short", share: 3, up: sizes{64, 1400}, down: sizes{64, 6000},
			pause: pauses{100 * time.Millisecond, time.Second}, life: pauses{window / 10, window}},
	}
}

// kindOf returns the kind of the n-th connection, so that every hundred connections have the
// shares.
func kindOf(kinds []kind, n int) kind {
	n = n * 37 % 100 // spread over the hundred
	for _, k := range kinds {
		if n -= k.share; n < 0 {
			return k
		}
	}
	panic("the shares of the kinds are not a hundred")
}
