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
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "table, json or yaml")
}

// check refuses an unknown format before anything is asked.
func (o *output) check() error {
	switch o.format {
	case "table", "json", "yaml":
		return nil
	}
	return usagef("unknown output %q (one of json, table, yaml)", o.format)
}

// write writes a value, or what table makes of it.
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
	table(t)
	return t.w.Flush()
}

// table aligns columns.
type table struct {
	w *tabwriter.Writer
}

func newTable(w io.Writer) *table {
	return &table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
}

// row writes one row; an empty cell becomes "-", so that columns can be counted.
func (t *table) row(cells ...any) {
	text := make([]string, len(cells))
	for i, c := range cells {
		if text[i] = printable(fmt.Sprint(c)); text[i] == "" {
			text[i] = "-"
		}
	}
	fmt.Fprintln(t.w, strings.Join(text, "\t"))
}

// printable keeps what others have written, such as a backend's answer to a probe or a router's
// last words, from moving a terminal's cursor, or beginning another line.
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
