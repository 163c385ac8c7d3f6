package record

import (
	"math"
	"slices"
	"testing"
)

func TestQuantile(t *testing.T) {
	values := []float64{4, 1, 3, 2}
	for part, want := range map[float64]float64{0: 1, 0.25: 1.75, 0.5: 2.5, 1: 4} {
		if got := Quantile(values, part); got != want {
			t.Errorf("quantile %g of %v is %g, want %g", part, values, got, want)
		}
	}
	if !slices.Equal(values, []float64{4, 1, 3, 2}) {
		t.Errorf("the values were sorted in place: %v", values)
	}
	for _, none := range [][]float64{nil, {1, math.NaN(), 2}} {
		if got := Median(none); !math.IsNaN(got) {
			t.Errorf("the median of %v is %g, want NaN", none, got)
		}
	}
}

func TestRatiosAreRoundByRound(t *testing.T) {
	of := &Measurement{Rounds: Values{10, 20, 30, 40}}
	to := &Measurement{Rounds: Values{20, 40, 0}}
	if got := Ratios(of, to); !slices.Equal(got, []float64{0.5, 0.5}) {
		t.Errorf("the ratios are %v, want those of the first two rounds", got)
	}
	if got := Ratios(of, nil); got != nil {
		t.Errorf("the ratios to nothing are %v", got)
	}
}
