package datapath

import (
	"testing"
	"time"
)

// What is given and not taken may wait, as long as something comes; then it was dropped.
func TestFanOutDropped(t *testing.T) {
	t.Parallel()
	var f fanOut
	at := time.Now()
	for _, step := range []struct {
		given, taken, dropped uint64
		after                 time.Duration
	}{
		{2000, 0, 0, 0},
		{5000, 2036, 916, 0},
		{5000, 2036, 916, fanOutRests / 2},
		{5000, 2036, 2964, fanOutRests},
		{5100, 2036, 2964, 0}, // more comes
		{5100, 2136, 2964, 0},
		{5100, 2136, 2964, 2 * fanOutRests},
	} {
		at = at.Add(step.after)
		if f.count(step.given, step.taken, 2048, at); f.dropped != step.dropped {
			t.Errorf("of %d given and %d taken %d were dropped, want %d", step.given, step.taken, f.dropped, step.dropped)
		}
	}
}
