package report

import (
	"math"
	"slices"

	"weir.io/weir/lab/record"
)

// binsPerDecade is the resolution of a histogram: each bin is about half as long again as the one
// before, and its ends are round numbers (Renard's R5 series, ISO 3).
const binsPerDecade = 5

// mostBins is how many bins readers can tell apart. Values below them are in the first bin.
const mostBins = 15

// histogram returns how often values fell into each bin, for quantities each of whose values is of
// one event. Bins are logarithmic, because delays span decades.
func (v *view) histogram() figure {
	_, unit := record.Scale(1, v.quantity.Unit)
	f := figure{
		name:  slug(v.scenario.Name, v.quantity.Name, "histogram"),
		title: v.scenario.Name + ": " + v.quantity.Name + ", how often",
		x:     v.quantity.Name + ", up to (" + unit + ")", y: "times", unit: 1, exact: true,
	}
	bins, any := map[string][]int{}, []int{}
	for _, m := range v.scenario.Measurements {
		if m.Quantity.Name != v.quantity.Name {
			continue
		}
		for _, value := range m.Rounds {
			if !math.IsNaN(value) {
				bins[m.Subject] = append(bins[m.Subject], binOf(value))
				any = append(any, binOf(value))
			}
		}
	}
	if len(any) == 0 {
		return f
	}
	high := slices.Max(any)
	low := max(slices.Min(any), high-mostBins+1)
	for bin := low; bin <= high; bin++ {
		f.groups = append(f.groups, record.Digits(endOf(bin)))
	}
	for _, subject := range v.subjects {
		times := make([]float64, high-low+1)
		for _, bin := range bins[subject] {
			times[max(bin, low)-low]++
		}
		s := series{name: subject, reference: record.IsReference(subject)}
		for i, n := range times {
			if n > 0 {
				s.points = append(s.points, point{float64(i), n, n, n})
			}
		}
		f.series = append(f.series, s)
	}
	f.series = slices.DeleteFunc(f.series, func(s series) bool { return len(s.points) == 0 })
	return f
}

// smallestBin ends at a thousandth of the unit, and has all smaller values, too.
const smallestBin = -3 * binsPerDecade

// binOf returns the bin of a value: the first one whose end is not below the value.
func binOf(value float64) int {
	if value <= endOf(smallestBin) {
		return smallestBin
	}
	bin := int(math.Ceil(math.Log10(value)*binsPerDecade)) - 1 // the rounded end may be below
	for endOf(bin) < value {
		bin++
	}
	return bin
}

// endOf returns the end of a bin, with two digits: 1, 1.6, 2.5, 4, 6.3, 10.
func endOf(bin int) float64 {
	decade := math.Floor(float64(bin) / binsPerDecade)
	within := float64(bin)/binsPerDecade - decade
	return math.Round(10*math.Pow(10, within)) * math.Pow(10, decade-1)
}
