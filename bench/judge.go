package main

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"weir.io/weir/lab/record"
)

// missingError says what a check lacks: a short run leaves things out.
type missingError struct {
	subject
	quantity record.Quantity
}

func (e missingError) Error() string {
	text := "there is no " + e.quantity.Name + " of " + e.name
	if len(e.at) > 0 {
		text += " with " + e.at.String()
	}
	return text
}

// judge compares what was measured with the targets. A check whose scenario did not run is left
// out. A check whose scenario broke is not met, whatever was measured by then: for example, a swap
// that misdirects a packet ends its scenario.
func judge(r *record.Record) []record.Check {
	judged := judgeBy(checks, r)
	for _, c := range alternates {
		called := func(other record.Check) bool { return other.Name == c.name }
		if s := r.Scenario(c.scenario); s != nil && !slices.ContainsFunc(judged, called) {
			judged = append(judged, c.judge(s))
		}
	}
	return judged
}

// judgeBy does the same by these targets.
func judgeBy(targets []check, r *record.Record) []record.Check {
	judged := []record.Check{}
	for _, c := range targets {
		if s := r.Scenario(c.scenario); s != nil {
			judged = append(judged, c.judge(s))
		}
	}
	return judged
}

func (c check) judge(s *record.Scenario) record.Check {
	judged := record.Check{Name: c.name, What: c.what, Value: record.Number(math.NaN()), Unit: c.unit,
		Relation: c.relation, Target: c.target, Scenario: c.scenario, Quantity: c.quantity.Name}
	value, err := c.value(s)
	if s.Error != "" && (err != nil || c.met(value)) {
		judged.Note = "the scenario ended with an error"
		return judged
	}
	missing := missingError{}
	switch {
	case errors.As(err, &missing):
		judged.Note = err.Error()
	case err != nil:
		judged.Value, judged.Note = record.Number(value), err.Error()
	case !record.Number(value).Finite():
		judged.Note = "a round has no value"
	default:
		judged.Value, judged.OK = record.Number(value), c.met(value)
	}
	return judged
}

// met is whether a value reaches the target. A missing value does not.
func (c check) met(value float64) bool {
	if c.relation == "<=" {
		return value <= c.target
	}
	return value >= c.target
}

// value returns what a scenario reached. Its error says why the value tells nothing: it was not
// measured, or noise made it impossible.
type value func(*record.Scenario) (float64, error)

// subject is what was measured, under which conditions.
type subject struct {
	name string
	at   record.Conditions
}

// find returns the measurement of a quantity. Its error may be a missingError.
func (of subject) find(s *record.Scenario, quantity record.Quantity) (*record.Measurement, error) {
	m := s.Find(of.name, of.at, quantity.Name)
	if m == nil {
		return nil, missingError{of, quantity}
	}
	return m, nil
}

// ratio is the median, over the rounds, of one subject's values divided by another's under the same
// conditions.
func ratio(of, to string, at record.Conditions, quantity record.Quantity) value {
	return ratioOf(subject{of, at}, subject{to, at}, quantity)
}

// ratioOf is the same for different conditions. All values in ratios must be positive, as times and
// rates are. A time that is a difference of two may be negative by noise, and chance would judge
// its ratio: a negative one is below every limit.
func ratioOf(of, to subject, quantity record.Quantity) value {
	return func(s *record.Scenario) (float64, error) {
		var both []*record.Measurement
		for _, one := range []subject{of, to} {
			m, err := one.find(s, quantity)
			if err != nil {
				return math.NaN(), err
			}
			both = append(both, m)
		}
		median := record.Median(record.Ratios(both[0], both[1]))
		for _, m := range both {
			if n := notPositive(m.Rounds); n > 0 {
				return median, fmt.Errorf("%s of %s is not above 0 in %d of %d rounds", quantity.Name, m.Subject, n, len(m.Rounds))
			}
		}
		return median, nil
	}
}

// notPositive counts the rounds whose value is not positive.
func notPositive(rounds record.Values) (n int) {
	for _, value := range rounds {
		if value <= 0 {
			n++
		}
	}
	return n
}

// reading is the median of one subject's values.
func reading(name string, at record.Conditions, quantity record.Quantity) value {
	return quantileOf(subject{name, at}, quantity, 0.5)
}

// quantileOf is the value below which that part of one subject's values is.
func quantileOf(of subject, quantity record.Quantity, part float64) value {
	return func(s *record.Scenario) (float64, error) {
		m, err := of.find(s, quantity)
		if err != nil {
			return math.NaN(), err
		}
		return record.Quantile(m.Rounds, part), nil
	}
}

// largest is the largest of some values.
func largest(of ...value) value {
	return func(s *record.Scenario) (float64, error) {
		most := math.Inf(-1)
		for _, one := range of {
			reached, err := one(s)
			if err != nil {
				return reached, err
			}
			most = max(most, reached)
		}
		return most, nil
	}
}
