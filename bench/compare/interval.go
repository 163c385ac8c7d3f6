package compare

import (
	"slices"

	"golang.org/x/perf/benchmath"
)

// Interval returns the median of the values and the bounds between which the median
// of all values there could be is, but in one case of a hundred: order statistics,
// which assume nothing of how the values are spread. Eight values are the fewest that
// have such bounds; of fewer one or both are infinite.
func Interval(values []float64) (low, median, high float64) {
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), 1-alpha)
	return s.Lo, s.Center, s.Hi
}
