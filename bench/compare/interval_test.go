package compare

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestInterval(t *testing.T) {
	const tries = 1000
	missed := 0
	for seed := range uint64(tries) {
		r := rand.New(rand.NewPCG(seed, 1))
		values := make([]float64, 20)
		for i := range values {
			values[i] = 3 + r.ExpFloat64() - math.Ln2 // whose median is 3
		}
		low, median, high := Interval(values)
		if low > median || median > high {
			t.Fatalf("the median %g of %v is not between %g and %g", median, values, low, high)
		}
		if low > 3 || high < 3 {
			missed++
		}
	}
	if missed > tries/50 { // 1 % is expected
		t.Errorf("%d of %d intervals do not contain the median", missed, tries)
	}
	if low, _, high := Interval([]float64{1, 2, 3, 4, 5, 6, 7}); !math.IsInf(low, -1) && !math.IsInf(high, 1) {
		t.Errorf("seven values bound the median by %g and %g", low, high)
	}
}
