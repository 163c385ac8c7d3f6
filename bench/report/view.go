package report

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"weir.io/weir/lab/record"
)

// view is one quantity of a scenario, laid out: a row for each set of conditions, a
// column for each subject.
type view struct {
	scenario *record.Scenario
	quantity record.Quantity
	subjects []string            // references first, then in the order of measurement
	keys     []string            // of the conditions that differ, the one with the most values last
	fixed    record.Conditions   // those that are the same everywhere
	rows     []record.Conditions // in the order of the keys' values
}

// views returns the quantities of a scenario in the order in which they were measured.
func views(s *record.Scenario) []view {
	var all []view
	for _, m := range s.Measurements {
		known := func(v view) bool { return v.quantity.Name == m.Quantity.Name }
		if !slices.ContainsFunc(all, known) {
			all = append(all, newView(s, m.Quantity))
		}
	}
	return all
}

func newView(s *record.Scenario, quantity record.Quantity) view {
	v := view{scenario: s, quantity: quantity}
	for _, m := range s.Measurements {
		if m.Quantity.Name != quantity.Name {
			continue
		}
		if !slices.Contains(v.subjects, m.Subject) {
			v.subjects = append(v.subjects, m.Subject)
		}
		same := func(row record.Conditions) bool { return maps.Equal(row, m.Conditions) }
		if !slices.ContainsFunc(v.rows, same) {
			v.rows = append(v.rows, m.Conditions)
		}
	}
	slices.SortStableFunc(v.subjects, func(a, b string) int {
		return cmp.Compare(rank(a), rank(b))
	})
	// What a subject measured once for several rows (a bare redirect does not know flows) is a cell
	// of these rows, not a row.
	v.rows = slices.DeleteFunc(slices.Clone(v.rows), func(row record.Conditions) bool {
		return slices.ContainsFunc(v.rows, func(other record.Conditions) bool {
			return len(row) < len(other) && row.HoldIn(other)
		})
	})
	v.findKeys()
	slices.SortStableFunc(v.rows, v.compareRows)
	return v
}

func rank(subject string) int {
	if record.IsReference(subject) {
		return 0
	}
	return 1
}

func (v *view) findKeys() {
	v.fixed = record.Conditions{}
	for _, key := range conditionNames(v.rows) {
		if values := v.values(key); len(values) == 1 {
			v.fixed[key] = values[0]
		} else {
			v.keys = append(v.keys, key)
		}
	}
	slices.SortStableFunc(v.keys, func(a, b string) int {
		return cmp.Compare(len(v.values(a)), len(v.values(b)))
	})
}

// conditionNames returns all names of conditions in the rows, sorted.
func conditionNames(rows []record.Conditions) []string {
	names := map[string]bool{}
	for _, row := range rows {
		for key := range row {
			names[key] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// values returns the different values of a condition, sorted.
func (v *view) values(key string) []string { return valuesOf(v.rows, key) }

func valuesOf(rows []record.Conditions, key string) []string {
	var values []string
	for _, row := range rows {
		if !slices.Contains(values, row[key]) {
			values = append(values, row[key])
		}
	}
	slices.SortFunc(values, compareValues)
	return values
}

// compareValues orders numbers by size, and puts them before words.
func compareValues(a, b string) int {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	switch {
	case errX == nil && errY == nil:
		return cmp.Compare(x, y)
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return cmp.Compare(a, b)
}

func (v *view) compareRows(a, b record.Conditions) int {
	for _, key := range v.keys {
		if order := compareValues(a[key], b[key]); order != 0 {
			return order
		}
	}
	return 0
}

// at returns a subject's measurement for a row, or nil.
func (v *view) at(row record.Conditions, subject string) *record.Measurement {
	return v.scenario.Nearest(subject, row, v.quantity.Name)
}

// axis returns the condition that a line can be drawn over: a number with more than two values, the
// one with the most. Empty if there is none.
func (v *view) axis() string {
	for _, key := range slices.Backward(v.keys) {
		values := v.values(key)
		numeric := !slices.ContainsFunc(values, func(value string) bool {
			_, err := strconv.ParseFloat(value, 64)
			return err != nil
		})
		if numeric && len(values) > 2 {
			return key
		}
	}
	return ""
}
