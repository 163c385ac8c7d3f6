// Package report makes a document with tables and figures from a record: always the same one, byte
// by byte, so that a diff shows a change of the figures.
package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
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
	guide.writeHead(w, r, source)
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
	svg, err := f.svg()
	if err != nil {
		return fmt.Errorf("draw %s: %w", f.title, err)
	}
	if _, found := d.figures[f.name+".svg"]; found {
		return fmt.Errorf("two figures are called %s", f.name)
	}
	d.figures[f.name+".svg"] = svg
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
	old, err := filepath.Glob(filepath.Join(directory, "*.svg"))
	if err != nil {
		return fmt.Errorf("list the figures: %w", err)
	}
	for _, file := range old {
		if _, wanted := d.figures[filepath.Base(file)]; !wanted {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("remove a figure of an earlier record: %w", err)
			}
		}
	}
	return record.WriteFile(path, d.markdown)
}

// Guide is the text of a document that is not in records: it is the same for all of them.
type Guide struct {
	Remarks map[string][]string // how to read a scenario, in markdown
	Events  map[string][]string // quantities of a scenario whose values are of one event each
	Reasons map[string]string   // a link to the reason why a check is missed, if it is known
	// Head writes the text before the checks, and Method the text after them, of a document that is
	// not about a machine; nil: the text of a benchmark.
	Head, Method func(w io.Writer, r *record.Record, source string)
}

// checks writes the table of targets. A check links to its table, and a missed one to the reason.
func (g Guide) checks(w io.Writer, r *record.Record) {
	fmt.Fprintf(w, "## Checks\n\n%s.\n\n", record.Tally(r.Checks))
	t := checks(r)
	var explained, unexplained bool
	for i, c := range r.Checks {
		if c.Verdict() == record.Missed {
			link := g.Reasons[c.Name]
			explained, unexplained = explained || link != "", unexplained || link == ""
			t.rows[i][0] = linked(t.rows[i][0], link)
		}
		if s := r.Scenario(c.Scenario); s != nil && measures(s, c.Quantity) {
			t.rows[i][1] = linked(c.Name, "#"+anchor(title(s, c.Quantity)))
		}
	}
	t.markdown(w)
	if explained {
		fmt.Fprint(w, "MISSED leads to what stands in the way. ")
	}
	if unexplained {
		fmt.Fprint(w, "Where MISSED leads nowhere, nobody has found it yet. ")
	}
	fmt.Fprint(w, "A check's name leads to its table.\n\n")
}

func measures(s *record.Scenario, quantity string) bool {
	for _, m := range s.Measurements {
		if m.Quantity.Name == quantity {
			return true
		}
	}
	return false
}

// title is the heading of a quantity's table.
func title(s *record.Scenario, quantity string) string { return s.Name + ": " + quantity }

func linked(text, to string) string {
	if to == "" {
		return text
	}
	return "[" + text + "](" + to + ")"
}

var notInAnchors = regexp.MustCompile(`[^a-z0-9 _-]+`)

// anchor is the anchor of a heading, as GitHub, GitLab and Gitea make it from plain words.
func anchor(heading string) string {
	return strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// method explains what all tables have in common.
const method = `## How it was measured

Everything runs on one machine, in network namespaces that the harness makes and removes. A scenario measures all of its subjects once per round, one after the other, so that a slow moment of the machine meets all of them.

A cell is the median of the rounds, and in parentheses the middle half of them (the 25th and the 75th percentile). Ratios are made within each round, and then the median of these ratios is taken: it is less noisy than the ratio of two medians, and it is what the checks judge.

The reference is ` + "`redirect`" + ` (a program that only hands each frame on, to another interface), else ` + "`reflect`" + ` (one that sends it back where it came from), else ` + "`swap`" + ` (one that swaps the MAC addresses and does nothing else, run by itself), else ` + "`direct`" + ` (no balancer).

A cost is the balancer's own time per packet, with what the generator and the sink take subtracted; a check in which one was not above 0 in some round is too noisy to tell anything, whatever its median. Absolute figures depend on the machine and on its moment; ratios travel better.

A cell with ` + "`-`" + ` was not measured under these conditions, or the condition means nothing to that subject: what would say nothing new is left out, so that a run takes a quarter of an hour, and a reference has no ratio to itself. ` + "`n/a`" + ` is a value that a round lacks.

`

// writeHead writes the text before the scenarios: the document's source, the checks, the machine, the
// method.
func (g Guide) writeHead(w io.Writer, r *record.Record, source string) {
	head, method := g.Head, g.Method
	if head == nil {
		head, method = g.head, aboutMachine
	}
	head(w, r, source)
	if len(r.Checks) > 0 {
		g.checks(w, r)
	}
	if method != nil {
		method(w, r, source)
	}
}

// head names the source of a benchmark's document.
func (g Guide) head(w io.Writer, r *record.Record, source string) {
	fmt.Fprintf(w, "# Benchmarks\n\n"+
		"Generated from `%s`; do not edit. A run writes its record and this document with\n\n"+
		"```sh\nmake bench ARGS=\"--docs\"\n```\n\n"+
		"and `bin/bench report %s` writes it again from the record, which has every round. "+
		"`bin/bench compare OLD.json NEW.json` says what changed between two runs.\n\n", source, source)
	if r.Settings.Smoke {
		fmt.Fprint(w, "**This was a smoke run**: it shows that the harness works, and its figures mean nothing.\n\n")
	}
}

func aboutMachine(w io.Writer, r *record.Record, _ string) {
	fmt.Fprint(w, "## The machine\n\n")
	machine(r).markdown(w)
	fmt.Fprint(w, method)
}

// machine is the table of where, when and how it was measured.
func machine(r *record.Record) *table {
	m := r.Machine
	jit := "off"
	if m.JIT {
		jit = "on"
	}
	t := &table{head: []string{"", ""}}
	t.add("commit", "`"+r.Commit+"`")
	t.add("started", r.Started.UTC().Format("2006-01-02 15:04 MST"))
	t.add("settings", fmt.Sprintf("rounds: %d; each subject in each of them: %v", r.Settings.Rounds, r.Settings.Sample))
	t.add("CPU", fmt.Sprintf("%s, %d cores (%s)", orAbsent(m.CPU), m.Cores, m.Arch))
	t.add("memory", fmt.Sprintf("%.1f GiB", float64(m.MemoryBytes)/(1<<30)))
	if len(m.Latencies) > 0 {
		t.add("random reads", latencies(m.Latencies))
	}
	t.add("kernel", fmt.Sprintf("Linux %s, BPF JIT %s", m.Kernel, jit))
	t.add("mitigations", orAbsent(pairs(m.Mitigations, ": ", "; ")))
	t.add("tools", pairs(m.Tools, " ", ", ")+", "+m.Go)
	return t
}

// latencies writes how long reads take, the smallest set first.
func latencies(all []record.Latency) string {
	var words []string
	for _, l := range all {
		words = append(words, fmt.Sprintf("%g MiB: %.3g ns", float64(l.Bytes)/(1<<20), l.Nanoseconds))
	}
	return strings.Join(words, ", ")
}

// pairs writes a map in the order of its keys.
func pairs(values map[string]string, between, after string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		words = append(words, key+between+values[key])
	}
	return strings.Join(words, after)
}
