package policies

import (
	"strconv"

	"weir.io/weir/lab/record"
)

var routesNotes = []string{
	"computed, not simulated: routers in front of a group hash flows over its directors (ECMP), and one director of the group leaves, whichever it is",
	"elsewhere: the share of flows whose packets come to another director than before, those of the one that left among them. In `gue` any director does with a packet what any other does, so nothing comes of it; in the other modes the flows of shared slots have to be known there, which is what directors tell each other",
	"modulo: hash modulo the number of next hops. hash-threshold: each next hop has an equal range of hashes ([RFC 2992](https://www.rfc-editor.org/rfc/rfc2992)), as in Linux. resilient: the flows of the others stay, as with next-hop groups of type resilient: the least that there can be",
}

var elsewhere = record.Quantity{Name: "elsewhere", Unit: "1", Better: record.Lower}

func askRoutes(a *asking) error {
	for _, n := range []int{2, 4, 8, 16, 64, 256, 1000} {
		at := record.Conditions{"directors": strconv.Itoa(n)}
		a.into.Add("modulo", at, elsewhere, 1-float64(n-1)/lcm(n, n-1))
		a.into.Add("hash-threshold", at, elsewhere, thresholdMoves(n))
		a.into.Add("resilient", at, elsewhere, 1/float64(n))
	}
	return nil
}

// thresholdMoves is the share that moves when a director leaves, the mean over all directors: the
// ranges of those before it grow to the right, and of those behind it to the left.
func thresholdMoves(n int) float64 {
	before, after := 1/float64(n), 1/float64(n-1)
	sum := 0.0
	for gone := range n {
		stay := 0.0
		for i := range n {
			if i == gone {
				continue
			}
			j := i
			if i > gone {
				j--
			}
			from := max(float64(i)*before, float64(j)*after)
			to := min(float64(i+1)*before, float64(j+1)*after)
			stay += max(0, to-from)
		}
		sum += 1 - stay
	}
	return sum / float64(n)
}
