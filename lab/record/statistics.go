package record

import (
	"math"
	"slices"
)

// Median returns the middle of the values, NaN if there are none. It does not change them.
func Median(values []float64) float64 {
	return Quantile(values, 0.5)
}

// Quantile returns the value below which that part of the values is, interpolated linearly between
// neighbors. It is NaN if there are none or one is missing: a median of the rounds that went well
// would flatter.
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

// Ratios divides round by round, which cancels the machine's slow moments: they affect both values
// of a round. Rounds that only one measurement has are left out.
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
