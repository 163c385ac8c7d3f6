package main

import (
	"io"
	"math"
	"testing"

	"weir.io/weir/lab/record"
)

// rowsOf is what rows records when every version takes that long, with some noise.
func rowsOf(rounds int, before, now float64) *record.Scenario {
	s := &session{into: &record.Scenario{Name: "rows"}, progress: io.Discard}
	for _, mode := range rowModes {
		for i := range rounds {
			noise := 1 + 0.01*float64(i%5-2)
			s.add(mode.Name, rowsBefore, record.Cost, before*noise)
			for _, shared := range sharedSlots {
				s.add(mode.Name, rowsAt(shared), record.Cost, now*(2-noise))
			}
		}
	}
	s.compareRows()
	return s.into
}

func TestRowsAreCompared(t *testing.T) {
	for _, test := range []struct {
		name        string
		rounds      int
		before, now float64
		off         float64 // at least; 0: exactly; NaN: it cannot be told
	}{
		{"the same", 20, 100, 100, 0},
		{"slower", 20, 100, 120, 0.15},
		{"faster", 20, 120, 100, 0.1},
		{"too few rounds", 5, 100, 120, math.NaN()},
		{"nothing", 0, 0, 0, math.NaN()},
	} {
		off, err := offBefore(rowsOf(test.rounds, test.before, test.now))
		switch {
		case math.IsNaN(test.off):
			if err == nil {
				t.Errorf("%s: %g, want that it cannot be told", test.name, off)
			}
		case err != nil || off < test.off || test.off == 0 && off != 0:
			t.Errorf("%s: %g (%v), want %g", test.name, off, err, test.off)
		}
	}
}
