package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"weir.io/weir/lab/record"
)

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
