package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

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

// table is rows of words, for a terminal or for markdown.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// markdown writes the table as markdown.
func (t *table) markdown(w io.Writer) {
	line := func(cells []string) {
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
	line(t.head)
	fmt.Fprintln(w, strings.Repeat("|---", len(t.head))+"|")
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.ReplaceAll(escaped(cell), "|", `\|`)
		}
		line(cells)
	}
	fmt.Fprintln(w)
}

// text writes the table in columns.
func (t *table) text(w io.Writer) error {
	columns := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(columns, strings.Join(t.head, "\t"))
	for _, row := range t.rows {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	fmt.Fprintln(columns)
	return columns.Flush()
}

// summary writes the median and, for several rounds, the middle half: 5.61 Mpps (5.52 to 5.70).
func summary(values []float64, unit string) string {
	median := record.Median(values)
	if !record.Number(median).Finite() || len(values) < 2 {
		return record.WithUnit(median, unit)
	}
	divisor, _ := record.Scale(median, unit)
	return fmt.Sprintf("%s (%s to %s)", record.WithUnit(median, unit),
		record.Digits(record.Quantile(values, 0.25)/divisor),
		record.Digits(record.Quantile(values, 0.75)/divisor))
}

// table is the table of the measurements. With a single set of conditions the subjects are the
// rows: there may be many.
func (v *view) table() *table {
	if len(v.rows) == 1 {
		return v.list()
	}
	t := &table{head: append(append([]string{}, v.keys...), v.subjects...)}
	v.fill(t, v.subjects, func(m *record.Measurement) string {
		return summary(m.Rounds, v.quantity.Unit)
	})
	return t
}

// ratios is the table of ratios to the reference, nil if there is none.
func (v *view) ratios() *table {
	var compared []string
	t := &table{head: append([]string{}, v.keys...)}
	for _, subject := range v.subjects {
		for _, row := range v.rows {
			m := v.at(row, subject)
			if m == nil {
				continue
			}
			if reference := v.scenario.Reference(m); reference != nil {
				compared = append(compared, subject)
				t.head = append(t.head, subject+" / "+reference.Subject)
				break
			}
		}
	}
	if len(compared) == 0 || len(v.rows) == 1 { // the list has a column for it
		return nil
	}
	v.fill(t, compared, v.ratio)
	return t
}

// fill writes a row for each set of conditions, unless it has no values.
func (v *view) fill(t *table, subjects []string, cell func(*record.Measurement) string) {
	for _, row := range v.rows {
		var cells []string
		for _, key := range v.keys {
			cells = append(cells, orAbsent(thousands(row[key])))
		}
		for _, subject := range subjects {
			text := absent
			if m := v.at(row, subject); m != nil {
				text = cell(m)
			}
			cells = append(cells, text)
		}
		said := func(cell string) bool { return cell != absent }
		if slices.ContainsFunc(cells[len(v.keys):], said) {
			t.add(cells...)
		}
	}
}

// list is the table of a single row, turned: the subjects may be many.
func (v *view) list() *table {
	t := &table{head: []string{"subject", v.quantity.Name}}
	compared := slices.ContainsFunc(v.subjects, func(subject string) bool {
		return v.scenario.Reference(v.at(v.rows[0], subject)) != nil
	})
	if compared {
		t.head = append(t.head, "ratio to the reference")
	}
	for _, subject := range v.subjects {
		m := v.at(v.rows[0], subject)
		cells := []string{subject, summary(m.Rounds, v.quantity.Unit)}
		if compared {
			cells = append(cells, v.ratio(m))
		}
		t.add(cells...)
	}
	return t
}

// ratio writes the median of the per-round ratios.
func (v *view) ratio(m *record.Measurement) string {
	reference := v.scenario.Reference(m)
	if reference == nil {
		return absent
	}
	return summary(record.Ratios(m, reference), "1")
}

// checks is the table of targets.
func checks(r *record.Record) *table {
	t := &table{head: []string{"", "check", "reached", "target", "what"}}
	for _, c := range r.Checks {
		t.add(string(c.Verdict()), c.Name, c.Reached(), c.Wanted(), explained(c))
	}
	return t
}

// explained is what a check is about, and why it has no verdict, if it has none.
func explained(c record.Check) string {
	if c.Note == "" {
		return orAbsent(c.What)
	}
	return strings.TrimSpace(c.What + " (" + c.Note + ")")
}

// only returns the conditions with these names.
func only(row record.Conditions, keys []string) record.Conditions {
	some := record.Conditions{}
	for _, key := range keys {
		if value, found := row[key]; found {
			some[key] = value
		}
	}
	return some
}

// named writes conditions for people: "family ipv4, frame 64".
func named(row record.Conditions) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(row)) {
		words = append(words, key+" "+row[key])
	}
	return strings.Join(words, ", ")
}

// label writes the values of these conditions: numbers with their names.
func label(row record.Conditions, keys []string) string {
	var words []string
	for _, key := range keys {
		value, found := row[key]
		if _, err := strconv.ParseFloat(value, 64); found && err == nil {
			value = value + " " + key
		}
		if value != "" {
			words = append(words, value)
		}
	}
	return strings.Join(words, ", ")
}

// timeAxis is the condition that is a time.
const timeAxis = "second"

// axisTitle says what a condition is, with its unit if it has one.
func axisTitle(key string) string {
	switch key {
	case "frame":
		return "frame (bytes)"
	case timeAxis:
		return "time (s)"
	}
	return key
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

func slug(words ...string) string {
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(strings.Join(words, "-")), "-"), "-")
}

// absent is the cell of a missing measurement.
const absent = "-"

// thousands separates the digits of a large whole number: 1,000,000.
func thousands(text string) string {
	if _, err := strconv.ParseUint(text, 10, 64); err != nil || len(text) < 5 {
		return text
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func orAbsent(text string) string {
	if text == "" {
		return absent
	}
	return text
}

// escaped is plain text escaped for markdown; "<=" needs no escape.
func escaped(text string) string {
	return tag.ReplaceAllString(strings.ReplaceAll(text, "\n", " "), "&lt;$1")
}

var tag = regexp.MustCompile(`<([a-zA-Z/!])`)

func sentence(text string) string {
	return strings.TrimSuffix(capital(text), ".") + "."
}

func capital(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
