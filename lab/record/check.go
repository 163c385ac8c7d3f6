package record

import (
	"fmt"
	"math"
	"strings"
)

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
