package report

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// ticks marks an axis with short numbers: 10k and 1M instead of 1e+06. A logarithmic axis draws
// exponents of ten.
type ticks struct {
	log bool
}

// Ticks returns where the axis is marked.
func (t ticks) Ticks(low, high float64) []plot.Tick {
	if t.log {
		return decades(low, high)
	}
	marks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range marks {
		if marks[i].Label != "" {
			marks[i].Label = shortNumber(marks[i].Value)
		}
	}
	return marks
}

// decades marks 1, 2 and 5 of each decade, and labels all of them only if there are few decades.
func decades(low, high float64) []plot.Tick {
	var marks []plot.Tick
	for decade := math.Floor(low); decade <= high; decade++ {
		for _, digit := range []float64{1, 2, 5} {
			exponent := decade + math.Log10(digit)
			if exponent < low-1e-3 || exponent > high+1e-3 {
				continue
			}
			mark := plot.Tick{Value: exponent}
			if digit == 1 || high-low <= 3 {
				mark.Label = shortNumber(digit * math.Pow(10, decade))
			}
			marks = append(marks, mark)
		}
	}
	return marks
}

func shortNumber(value float64) string {
	divisor, prefix := 1.0, ""
	for _, p := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(value) >= p.size {
			divisor, prefix = p.size, p.name
			break
		}
	}
	return strconv.FormatFloat(value/divisor, 'g', 4, 64) + prefix
}
