package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"weir.io/weir/lab/record"
)

// fewestSamples is the least number of samples whose later half can tell a trend from chance.
const fewestSamples = 16

// chance is by how many standard deviations Kendall's statistic exceeds its mean once in a thousand
// times for values without a trend.
const chance = 3.09

// whole is the step of counted values. They are whole numbers, and one more may be no leak: so
// trends are rounded to it, and a trend of one step is not growth.
const whole = 1

// growth returns by how many percent of their median values have grown: the most of three answers,
// as leaks differ. A steady leak is in the trend of all values, one that begins late in that of the
// later half, and one that happens once and stays raises the least of the last quarter above the
// least of the second; the first quarter is warm-up there. step is the least by which values of
// this kind change, 0 for any.
func growth(values []float64, step float64) (percent float64, err error) {
	if len(values) < fewestSamples {
		return math.NaN(), fmt.Errorf("%d samples are too few to see growth in: %d are the fewest", len(values), fewestSamples)
	}
	if slices.ContainsFunc(values, math.IsNaN) {
		return math.NaN(), errors.New("a sample is missing")
	}
	quarter, half := len(values)/4, len(values)/2
	most := 0.0
	for _, grown := range []float64{
		trend(values),
		trend(values[half:]),
		slices.Min(values[len(values)-quarter:]) - slices.Min(values[quarter:2*quarter]),
	} {
		if step > 0 {
			grown = math.Round(grown/step) * step
		}
		if grown > step {
			most = max(most, grown)
		}
	}
	if most == 0 {
		return 0, nil
	}
	middle := record.Median(values)
	if middle <= 0 {
		return math.NaN(), fmt.Errorf("what is %g in the median has grown by %g: that is no percentage", middle, most)
	}
	return 100 * most / middle, nil
}

// trend returns by how much values taken at equal intervals have grown from the first to the last:
// the median of the slopes between any two values, times the distance from first to last (Theil and
// Sen). No single value, and no change that does not last, moves it far. It is 0 unless values
// without a trend would look the same less than once in a thousand times (Kendall).
func trend(values []float64) float64 {
	var slopes []float64
	score := 0
	for i, from := range values {
		for j, to := range values[i+1:] {
			slopes = append(slopes, (to-from)/float64(j+1))
			score += cmp.Compare(to, from)
		}
	}
	if float64(score-1) <= chance*math.Sqrt(scoreVariance(values)) {
		return 0
	}
	return record.Median(slopes) * float64(len(values)-1)
}

// scoreVariance is the variance of Kendall's score for values without a trend. The score is the
// number of rising pairs less that of falling pairs. Equal values leave less to chance.
func scoreVariance(values []float64) float64 {
	equal := map[float64]int{}
	for _, v := range values {
		equal[v]++
	}
	of := func(n int) float64 { return float64(n * (n - 1) * (2*n + 5)) }
	variance := of(len(values))
	for _, n := range equal {
		variance -= of(n)
	}
	return variance / 18
}

// worstGrowth is the growth of the measurement of these quantities that has grown the most.
func worstGrowth(quantities ...record.Quantity) func(*record.Scenario) (float64, error) {
	return func(s *record.Scenario) (float64, error) {
		most := math.NaN()
		for _, m := range s.Measurements {
			if !slices.Contains(quantities, m.Quantity) {
				continue
			}
			step := 0.0
			if m.Quantity.Unit == "" { // the quantity is a count
				step = whole
			}
			percent, err := growth(m.Rounds, step)
			if err != nil {
				return math.NaN(), fmt.Errorf("%s of %s: %w", m.Quantity.Name, m.Subject, err)
			}
			if math.IsNaN(most) || percent > most {
				most = percent
			}
		}
		if math.IsNaN(most) {
			return most, missingError{subject{soakGroup, nil}, quantities[0]}
		}
		return most, nil
	}
}
