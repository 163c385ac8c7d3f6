package compare

import (
	"slices"

	"golang.org/x/perf/benchmath"
)

// Interval returns the median of the values and bounds that contain the median of the whole
// population in 99 cases of 100. The bounds are order statistics, which assume nothing about the
// distribution. At least eight values are needed for both bounds to be finite.
func Interval(values []float64) (low, median, high float64) {
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), 1-alpha)
	return s.Lo, s.Center, s.Hi
}
