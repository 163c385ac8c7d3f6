package record

import (
	"math"
	"slices"
)

// Median returns the middle of the values, NaN of none. They are left as they are.
func Median(values []float64) float64 {
	return Quantile(values, 0.5)
}

// Quantile returns the value below which that part of the values is, interpolated
// linearly between neighbours; NaN of none, and where one is missing: a median of the
// rounds that went well would flatter.
func Quantile(values []float64, part float64) float64 {
	if len(values) == 0 || slices.ContainsFunc(values, math.IsNaN) {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := part * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

// Ratios divides round by round, which takes the machine's slow moments out: both
// values of a round were taken in the same one. Rounds that only one of them has
// are left out.
func Ratios(of, to *Measurement) []float64 {
	if of == nil || to == nil {
		return nil
	}
	ratios := make([]float64, 0, len(of.Rounds))
	for i := range min(len(of.Rounds), len(to.Rounds)) {
		if to.Rounds[i] != 0 {
			ratios = append(ratios, of.Rounds[i]/to.Rounds[i])
		}
	}
	return ratios
}
