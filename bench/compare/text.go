package compare

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"weir.io/weir/lab/record"
)

// Print writes the result for people.
func (r *Result) Print(w io.Writer) error {
	for _, warning := range r.Warnings {
		fmt.Fprintln(w, "warning:", warning)
	}
	if len(r.Changes) == 0 {
		fmt.Fprintf(w, "Of %d measurements none changed by more than its noise.\n", r.Compared)
	} else {
		fmt.Fprintf(w, "Of %d measurements %d changed by more than their noise:\n\n", r.Compared, len(r.Changes))
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for i, c := range r.Changes {
		if i == 0 {
			fmt.Fprintln(table, "change\t\tscenario\tsubject\tquantity\tconditions\told\tnew\tp")
		}
		fmt.Fprintln(table, strings.Join([]string{c.percent(), string(c.Verdict), c.Scenario, c.Subject,
			c.Quantity.Name, c.Conditions.String(), c.written(c.Old), c.written(c.New), fmt.Sprintf("%.2g", c.P)}, "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the changes: %w", err)
	}
	list(w, "Only in the old record", r.OnlyOld)
	list(w, "Only in the new record", r.OnlyNew)
	return nil
}

func list(w io.Writer, title string, names []string) {
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for _, name := range names {
		fmt.Fprintln(w, "- "+name)
	}
}

// percent writes the change, or "?" if the old value was zero.
func (c Change) percent() string {
	if !c.Change.Finite() {
		return "?"
	}
	change := 100 * float64(c.Change)
	if math.Abs(change) < 10 {
		return fmt.Sprintf("%+.1f %%", change)
	}
	return fmt.Sprintf("%+.0f %%", change)
}

// written is a median with its spread: absolute, or as a ratio to the reference.
func (c Change) written(s Summary) string {
	unit, suffix := c.Quantity.Unit, ""
	if c.Reference != "" {
		unit, suffix = "1", " x "+c.Reference
	}
	divisor, _ := record.Scale(float64(s.Median), unit)
	return fmt.Sprintf("%s (%s to %s)%s", record.WithUnit(float64(s.Median), unit),
		record.Digits(float64(s.Low)/divisor), record.Digits(float64(s.High)/divisor), suffix)
}
