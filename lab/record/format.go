package record

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Short names of the units that tables and figures show.
var shortUnits = map[string]string{"packet/s": "pps", "bit/s": "bps"}

// seconds are the units of time: a table shows whichever reads best.
var seconds = map[string]float64{"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1}

// Units that take no prefix: ratios and shares.
var bare = []string{"", "1", "%"}

type prefix struct {
	size float64
	name string
}

var (
	large = []prefix{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}}
	small = []prefix{{1, ""}, {1e-3, "m"}, {1e-6, "µ"}, {1e-9, "n"}}
)

// WithUnit writes a value with three significant digits and the SI prefix that fits
// its unit: 5.61 Mpps, 76.1 ns, 0.812. A value that is missing is "n/a".
func WithUnit(value float64, unit string) string {
	if !Number(value).Finite() {
		return "n/a"
	}
	divisor, name := Scale(value, unit)
	return strings.TrimSpace(Digits(value/divisor) + " " + name)
}

// Scale returns the divisor for values of this unit and about this size, and the unit that they
// have then: 1e6 and Mpps. The unit of a ratio is empty.
func Scale(about float64, unit string) (divisor float64, name string) {
	if slices.Contains(bare, unit) {
		return 1, strings.TrimPrefix(unit, "1")
	}
	prefixes, base, name := large, 1.0, shortUnit(unit)
	if second, found := seconds[unit]; found {
		prefixes, base, name = small, second, "s"
	}
	size := math.Abs(about) * base * (1 + 1e-9) // 1e-9 * 1e9 is a little less than 1
	if size == 0 || !Number(size).Finite() {
		return 1, shortUnit(unit)
	}
	fits := prefixes[len(prefixes)-1]
	for _, p := range prefixes {
		if size >= p.size {
			fits = p
			break
		}
	}
	return fits.size / base, fits.name + name
}

func shortUnit(unit string) string {
	if short, found := shortUnits[unit]; found {
		return short
	}
	return unit
}

// Digits writes a number with three significant digits, but with all digits before the point.
func Digits(value float64) string {
	size := math.Abs(value)
	switch {
	case value == math.Trunc(value) && size < 1e6, size >= 99.95:
		return strconv.FormatFloat(value, 'f', 0, 64)
	case size >= 9.995:
		return strconv.FormatFloat(value, 'f', 1, 64)
	case size >= 0.9995:
		return strconv.FormatFloat(value, 'f', 2, 64)
	case size >= 0.0995:
		return strconv.FormatFloat(value, 'f', 3, 64)
	}
	return strconv.FormatFloat(value, 'g', 3, 64)
}
