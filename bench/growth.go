package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"weir.io/weir/bench/record"
)

// fewestSamples are those of which the later half is enough for a trend to be told from chance.
const fewestSamples = 16

// chance is how many standard deviations Kendall's statistic is from its mean once in a
// thousand times, on one side, for values without a trend.
const chance = 3.09

// whole is the step of what is counted. There is no part of one, and one more may be without a
// leak: so trends are rounded to it, and none of one step is growth.
const whole = 1

// growth returns by how many per cent of their median values have grown, the most of three
// answers, as leaks differ: one that goes on is in the trend of all values, one that begins
// late is in that of the later half, and what came once and stays has raised the least of the
// last quarter above the least of the second. The first quarter is warm-up there. step is what
// values of this kind change by at least, 0 for any.
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

// trend returns by how much values that were taken at equal distances have grown from the
// first to the last: the median of the slopes between any two of them, times the distance of
// these (Theil and Sen). No single value, and no change that does not last, moves it far. It is 0
// where values that only come and go would look the same once in a thousand times (Kendall).
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

// scoreVariance is the variance of Kendall's score of values without a trend: the number of
// pairs that rise less that of those that fall. Equal values leave less to chance.
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

// worstGrowth is that of whatever has grown the most, of these quantities.
func worstGrowth(quantities ...record.Quantity) func(*record.Scenario) (float64, error) {
	return func(s *record.Scenario) (float64, error) {
		most := math.NaN()
		for _, m := range s.Measurements {
			if !slices.Contains(quantities, m.Quantity) {
				continue
			}
			step := 0.0
			if m.Quantity.Unit == "" { // it is counted
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
