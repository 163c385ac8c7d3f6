// Package compare distinguishes changes between two runs of the benchmarks from noise.
package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"golang.org/x/perf/benchmath"

	"weir.io/weir/lab/record"
)

// alpha is the share of measurements without a change for which one may be reported: one in a
// hundred. At least five rounds in both runs are needed to reach it.
const alpha = 0.01

// Verdict says what a change means.
type Verdict string

// The verdicts.
const (
	Slower  Verdict = "slower"  // or larger: worse, for its quantity
	Faster  Verdict = "faster"  // or smaller
	Changed Verdict = "changed" // neither way is better
)

// Summary is the median of the rounds and the middle half of them.
type Summary struct {
	Median record.Number `json:"median"`
	Low    record.Number `json:"low"`  // the 25th percentile
	High   record.Number `json:"high"` // the 75th
}

// Change is a measurement that differs by more than its noise.
type Change struct {
	Scenario   string            `json:"scenario"`
	Subject    string            `json:"subject"`
	Conditions record.Conditions `json:"conditions"`
	Quantity   record.Quantity   `json:"quantity"`
	// Reference is the subject that both runs' values are ratios to, round by round; empty if the
	// values are absolute.
	Reference string        `json:"reference,omitempty"`
	Old       Summary       `json:"old"`
	New       Summary       `json:"new"`
	Change    record.Number `json:"change"` // new / old - 1; null when the old is 0
	P         float64       `json:"p"`      // of the Mann-Whitney test
	Verdict   Verdict       `json:"verdict"`
}

// Result is the comparison of two records.
type Result struct {
	Compared int      `json:"compared"` // measurements that both have
	Unclear  int      `json:"unclear"`  // of these, with too few rounds to tell any change from noise
	Changes  []Change `json:"changes"`  // the largest first
	OnlyOld  []string `json:"onlyOld"`
	OnlyNew  []string `json:"onlyNew"`
	Warnings []string `json:"warnings"`
}

// Records compares two runs, measurement by measurement.
func Records(old, new *record.Record) *Result {
	result := &Result{Changes: []Change{}, OnlyOld: []string{}, OnlyNew: []string{}, Warnings: differences(old, new)}
	for i := range old.Scenarios {
		was := &old.Scenarios[i]
		is := new.Scenario(was.Name)
		if is == nil {
			result.OnlyOld = append(result.OnlyOld, was.Name)
			continue
		}
		result.scenario(was, is)
	}
	for i := range new.Scenarios {
		if is := &new.Scenarios[i]; old.Scenario(is.Name) == nil {
			result.OnlyNew = append(result.OnlyNew, is.Name)
		}
	}
	if result.Unclear > 0 {
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"%d of %d measurements have too few rounds to tell any change from noise: five in both runs are the fewest", result.Unclear, result.Compared))
	}
	slices.SortStableFunc(result.Changes, func(a, b Change) int { return cmp.Compare(b.size(), a.size()) })
	return result
}

// scenario compares the measurements that both runs of a scenario have.
func (r *Result) scenario(was, is *record.Scenario) {
	for _, s := range []*record.Scenario{was, is} {
		if s.Error != "" {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s ended with an error in one of the runs: %s", s.Name, s.Error))
		}
	}
	for _, m := range was.Measurements {
		n := is.Find(m.Subject, m.Conditions, m.Quantity.Name)
		if n == nil {
			r.OnlyOld = append(r.OnlyOld, name(was, m))
			continue
		}
		r.Compared++
		change, significant, enough := measurement(was, is, m, n)
		if !enough {
			r.Unclear++
		}
		if significant {
			r.Changes = append(r.Changes, change)
		}
	}
	for _, n := range is.Measurements {
		if was.Find(n.Subject, n.Conditions, n.Quantity.Name) == nil {
			r.OnlyNew = append(r.OnlyNew, name(is, n))
		}
	}
}

// measurement compares one measurement: by its ratios to the reference if both runs have one,
// otherwise as it is. A change counts when the Mann-Whitney test sees two distributions and the
// middle halves of the rounds lie apart: the test alone finds differences that are real but smaller
// than the noise.
func measurement(was, is *record.Scenario, m, n *record.Measurement) (c Change, significant, enough bool) {
	old, new, reference := samples(was, is, m, n)
	c = Change{Scenario: was.Name, Subject: m.Subject, Conditions: m.Conditions, Quantity: m.Quantity,
		Reference: reference, Old: summary(old), New: summary(new)}
	thresholds := &benchmath.Thresholds{CompareAlpha: alpha}
	test := benchmath.AssumeNothing.Compare(
		benchmath.NewSample(slices.Clone(old), thresholds), benchmath.NewSample(slices.Clone(new), thresholds))
	c.P = test.P
	c.Change = (c.New.Median - c.Old.Median) / record.Number(math.Abs(float64(c.Old.Median)))
	c.Verdict = verdict(m.Quantity.Better, c.New.Median > c.Old.Median)
	apart := c.New.Low > c.Old.High || c.New.High < c.Old.Low
	return c, test.P <= alpha && apart, possible(len(old), len(new))
}

// samples returns the rounds of both runs in comparable terms.
func samples(was, is *record.Scenario, m, n *record.Measurement) (old, new []float64, reference string) {
	to, now := was.Reference(m), is.Reference(n)
	if to == nil || now == nil || to.Subject != now.Subject {
		return finite(m.Rounds), finite(n.Rounds), ""
	}
	return finite(record.Ratios(m, to)), finite(record.Ratios(n, now)), to.Subject
}

// finite leaves out missing values.
func finite(values []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return !record.Number(v).Finite() })
}

// possible is whether the test can reach alpha at all: samples without any overlap are one of the
// ways to choose a of a+b values, or its mirror image.
func possible(a, b int) bool {
	ways := 1.0
	for i := 1; i <= a; i++ {
		ways *= float64(b+i) / float64(i)
	}
	return 2/ways <= alpha
}

func summary(values []float64) Summary {
	return Summary{record.Number(record.Median(values)),
		record.Number(record.Quantile(values, 0.25)), record.Number(record.Quantile(values, 0.75))}
}

func verdict(better record.Better, more bool) Verdict {
	switch {
	case better == record.Neither:
		return Changed
	case (better == record.Higher) == more:
		return Faster
	}
	return Slower
}

// size orders changes: half counts as much as double.
func (c Change) size() float64 {
	ratio := float64(c.New.Median / c.Old.Median)
	if !(ratio > 0) { // from or to nothing, or across it
		return math.Inf(1)
	}
	return math.Abs(math.Log(ratio))
}

func name(s *record.Scenario, m *record.Measurement) string {
	text := s.Name + ": " + m.Quantity.Name + " of " + m.Subject
	if len(m.Conditions) > 0 {
		text += " at " + m.Conditions.String()
	}
	return text
}

// differences says what makes two records hard to compare.
func differences(old, new *record.Record) []string {
	warnings := []string{}
	differ := func(what, old, new string) {
		if old != new {
			warnings = append(warnings, fmt.Sprintf("the %s differs: %s, then %s", what, old, new))
		}
	}
	describe := func(m record.Machine) string { return fmt.Sprintf("%s with %d cores", m.CPU, m.Cores) }
	differ("machine", describe(old.Machine), describe(new.Machine))
	differ("kernel", old.Machine.Kernel, new.Machine.Kernel)
	differ("JIT", fmt.Sprint(old.Machine.JIT), fmt.Sprint(new.Machine.JIT))
	differ("sample", old.Settings.Sample.String(), new.Settings.Sample.String())
	if old.Settings.Smoke || new.Settings.Smoke {
		warnings = append(warnings, "one of the runs was a smoke run, whose figures mean nothing")
	}
	return warnings
}
