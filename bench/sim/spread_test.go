package sim

import (
	"math"
	"testing"
)

// Shares add up to one, one queue has all, and of two even flows both queues have one as often as one has both.
func TestQueueShares(t *testing.T) {
	for _, c := range []struct {
		queues, flows int
		exponent      float64
		most, within  float64 // the largest share
	}{
		{1, 1000, 1.1, 1, 1e-9},
		{2, 2, 0, 0.75, 0.05},
		{4, 1, 0, 1, 1e-9},
		// Of 1,000 flows on two queues: 1/2 + sqrt(1/(2 pi 1000)).
		{2, 1000, 0, 0.5126, 0.002},
	} {
		shares, sum := QueueShares(c.queues, ZipfWeights(c.flows, c.exponent), 1), 0.0
		for i, share := range shares {
			sum += share
			if i > 0 && share > shares[i-1] {
				t.Errorf("%+v: shares are not in order: %v", c, shares)
			}
		}
		if len(shares) != c.queues || math.Abs(sum-1) > 1e-9 || math.Abs(shares[0]-c.most) > c.within {
			t.Errorf("%+v: %v", c, shares)
		}
	}
	// Uneven flows load a queue more than even ones do.
	if even, uneven := QueueShares(8, ZipfWeights(1000, 0), 1)[0], QueueShares(8, ZipfWeights(1000, 1.1), 1)[0]; uneven < 1.5*even {
		t.Errorf("the busiest of 8 queues has %.3f of even flows, and %.3f of uneven ones", even, uneven)
	}
}
