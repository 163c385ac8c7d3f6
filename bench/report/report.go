// Package report makes a document with tables and figures from a record: always the same one, byte
// by byte, so that a diff shows a change of the figures.
package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weir.io/weir/lab/record"
)

// Document is a markdown file and the figures that it shows.
type Document struct {
	markdown []byte
	figures  map[string][]byte // by file name
}

// New makes the document of a record, with a guide to it. Figures are in the directory with the
// document's name; source is the name of the record's file.
func New(r *record.Record, guide Guide, source, path string) (*Document, error) {
	directory := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	d := &Document{figures: map[string][]byte{}}
	w := &bytes.Buffer{}
	guide.begin(w, r, source)
	for i := range r.Scenarios {
		if err := d.scenario(w, &r.Scenarios[i], guide, directory); err != nil {
			return nil, err
		}
	}
	d.markdown = append(bytes.TrimRight(w.Bytes(), "\n"), '\n')
	return d, nil
}

// scenario writes one scenario: a table and figures for each of its quantities.
func (d *Document) scenario(w io.Writer, s *record.Scenario, guide Guide, directory string) error {
	remarks := guide.Remarks[s.Name]
	fmt.Fprintf(w, "## %s\n\n%s\n\n", s.Name, escaped(sentence(s.What)))
	if s.Error != "" {
		fmt.Fprintf(w, "**It ended with an error**, so what follows is incomplete: %s\n\n", escaped(s.Error))
	}
	for _, note := range s.Notes {
		fmt.Fprintf(w, "- %s\n", escaped(note))
	}
	for _, remark := range remarks {
		fmt.Fprintf(w, "- %s\n", remark)
	}
	if len(s.Notes)+len(remarks) > 0 {
		fmt.Fprintln(w)
	}
	for _, v := range views(s) {
		fmt.Fprintf(w, "### %s\n\n", title(s, v.quantity.Name))
		if caption := v.caption(); caption != "" {
			fmt.Fprintf(w, "%s\n\n", caption)
		}
		figures := v.figures()
		if slices.Contains(guide.Events[s.Name], v.quantity.Name) {
			if f := v.histogram(); len(f.series) > 0 {
				figures = []figure{f}
			}
		}
		for _, f := range figures {
			if err := d.draw(&f); err != nil {
				return err
			}
			fmt.Fprintf(w, "![%s](%s/%s.svg)\n\n", f.title, directory, f.name)
		}
		v.table().markdown(w)
		if ratios := v.ratios(); ratios != nil {
			fmt.Fprintf(w, "Ratios, round by round:\n\n")
			ratios.markdown(w)
		}
	}
	return nil
}

func (d *Document) draw(f *figure) error {
	svg, errSVG := f.svg()
	png, errPNG := f.png()
	if err := errors.Join(errSVG, errPNG); err != nil {
		return fmt.Errorf("draw %s: %w", f.title, err)
	}
	if _, found := d.figures[f.name+".svg"]; found {
		return fmt.Errorf("two figures are called %s", f.name)
	}
	d.figures[f.name+".svg"], d.figures[f.name+".png"] = svg, png
	return nil
}

// caption says what the table does not: which direction is better, and what all rows have in
// common.
func (v *view) caption() string {
	var sentences []string
	if v.quantity.Better != record.Neither {
		sentences = append(sentences, capital(string(v.quantity.Better))+" is better.")
	}
	if len(v.fixed) > 0 {
		sentences = append(sentences, "Throughout: "+named(v.fixed)+".")
	}
	return strings.Join(sentences, " ")
}

// Text writes the checks and all tables for a terminal.
func Text(w io.Writer, r *record.Record) error {
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		fmt.Fprintf(w, "%s: %s (%.0f s)\n", s.Name, s.What, s.Seconds)
		if s.Error != "" {
			fmt.Fprintf(w, "It ended with an error: %s\n", s.Error)
		}
		for _, note := range s.Notes {
			fmt.Fprintf(w, "- %s\n", note)
		}
		fmt.Fprintln(w)
		for _, v := range views(s) {
			fmt.Fprintf(w, "%s: %s. %s\n", s.Name, v.quantity.Name, v.caption())
			err := v.table().text(w)
			if ratios := v.ratios(); ratios != nil {
				err = errors.Join(err, ratios.text(w))
			}
			if err != nil {
				return fmt.Errorf("print the tables: %w", err)
			}
		}
	}
	if len(r.Checks) == 0 {
		return nil
	}
	if err := checks(r).text(w); err != nil {
		return fmt.Errorf("print the checks: %w", err)
	}
	fmt.Fprintf(w, "Of the checks %s.\n", record.Tally(r.Checks))
	return nil
}

// Write writes the document and its figures, and removes figures that it no longer has.
func (d *Document) Write(path string) error {
	directory := strings.TrimSuffix(path, filepath.Ext(path))
	for name, data := range d.figures {
		if err := record.WriteFile(filepath.Join(directory, name), data); err != nil {
			return err
		}
	}
	old, err := filepath.Glob(filepath.Join(directory, "*"))
	if err != nil {
		return fmt.Errorf("list the figures: %w", err)
	}
	for _, file := range old {
		_, wanted := d.figures[filepath.Base(file)]
		if !wanted && slices.Contains([]string{".svg", ".png"}, filepath.Ext(file)) {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("remove a figure of an earlier record: %w", err)
			}
		}
	}
	return record.WriteFile(path, d.markdown)
}
