package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/config"
)

// output is how a command writes its answer.
type output struct {
	format string
}

func (o *output) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "table, wide (a table with all columns), json or yaml")
}

// check refuses an unknown format before anything is asked.
func (o *output) check() error {
	switch o.format {
	case "table", "wide", "json", "yaml":
		return nil
	}
	return usagef("unknown output %q (one of json, table, wide, yaml)", o.format)
}

// write writes a value, or the table that table makes of it.
func (o *output) write(w io.Writer, value any, table func(t *table)) error {
	switch o.format {
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false) // it is for people and programs, not for a page
		return encoder.Encode(value)
	case "yaml":
		text, err := config.Marshal(value)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	t := newTable(w)
	t.wide = o.format == "wide"
	table(t)
	return t.w.Flush()
}

// table aligns columns.
type table struct {
	w      *tabwriter.Writer
	wide   bool   // all columns are written
	hidden []bool // the columns of the current table that are not written
}

func newTable(w io.Writer) *table {
	return &table{w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
}

// onlyWide marks a column that only --output wide shows: without such columns a table fits a
// terminal of 120 columns.
const onlyWide = "+"

// head writes the names of columns, and chooses those that the rows below write.
func (t *table) head(names ...string) {
	t.hidden = make([]bool, len(names))
	cells := make([]any, len(names))
	for i, name := range names {
		name, wide := strings.CutPrefix(name, onlyWide)
		t.hidden[i] = wide && !t.wide
		cells[i] = name
	}
	t.row(cells...)
}

// row writes one row; an empty cell becomes "-", so that columns can be counted.
func (t *table) row(cells ...any) {
	text := make([]string, 0, len(cells))
	for i, c := range cells {
		if i < len(t.hidden) && t.hidden[i] {
			continue
		}
		cell := printable(fmt.Sprint(c))
		if cell == "" {
			cell = "-"
		}
		text = append(text, cell)
	}
	fmt.Fprintln(t.w, strings.Join(text, "\t"))
}

// printable keeps text from other hosts, such as a backend's answer to a probe or a router's last
// message, from moving a terminal's cursor, or beginning another line.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// line writes a line outside the columns.
func (t *table) line(text string) { fmt.Fprintln(t.w, text) }
