package record

import (
	"fmt"
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

// Check is a target and what was reached.
type Check struct {
	Name     string  `json:"name"`
	What     string  `json:"what"`
	Value    Number  `json:"value"` // null when it was not measured
	Unit     string  `json:"unit,omitempty"`
	Relation string  `json:"relation"` // >= or <=: of the value to the target
	Target   float64 `json:"target"`
	OK       bool    `json:"ok"`
	// Note says why there is no verdict: nothing was measured, or the value is impossible. Neither
	// is ok, so that readers of ok alone do not trust too much.
	Note     string `json:"note,omitempty"`
	Scenario string `json:"scenario,omitempty"` // the one that measured it
	Quantity string `json:"quantity,omitempty"` // the one whose table shows it
}

// Verdict is what came of a check.
type Verdict string

// The verdicts.
const (
	Met         Verdict = "ok"
	Missed      Verdict = "MISSED"
	TooNoisy    Verdict = "too noisy to tell"
	NotMeasured Verdict = "not measured"
)

// Verdict says whether the target was reached, or why that is not known.
func (c Check) Verdict() Verdict {
	switch {
	case c.OK:
		return Met
	case !c.Value.Finite():
		return NotMeasured
	case c.Note != "":
		return TooNoisy
	}
	return Missed
}

// Reached is the value with its unit. A value that missed its target by little has more digits, so
// that it does not look as if it had met it.
func (c Check) Reached() string {
	value := float64(c.Value)
	if !c.Value.Finite() {
		return "-"
	}
	if !c.OK && math.Abs(value-c.Target) < 0.005*math.Abs(c.Target) {
		return strings.TrimSpace(fmt.Sprintf("%.5g %s", value, strings.TrimPrefix(c.Unit, "1")))
	}
	return WithUnit(value, c.Unit)
}

// Wanted is the target with its unit and relation.
func (c Check) Wanted() string {
	return c.Relation + " " + WithUnit(c.Target, c.Unit)
}

// String is how a check is printed.
func (c Check) String() string {
	return fmt.Sprintf("%-6s %s: %s (%s)", c.Verdict(), c.Name, c.Reached(), c.Wanted())
}

// Tally counts the verdicts: "20 of 21 are met, 1 is missed".
func Tally(checks []Check) string {
	count := map[Verdict]int{}
	for _, c := range checks {
		count[c.Verdict()]++
	}
	words := []string{fmt.Sprintf("%d of %d %s met", count[Met], len(checks), are(len(checks)))}
	for _, v := range []struct {
		Verdict
		text string
	}{{Missed, "missed"}, {TooNoisy, "too noisy to tell"}, {NotMeasured, "not measured"}} {
		if n := count[v.Verdict]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s %s", n, are(n), v.text))
		}
	}
	return strings.Join(words, ", ")
}

func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
