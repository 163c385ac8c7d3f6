package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// summary is the result of several runs together.
type summary struct {
	Runs              int       `json:"runs"`
	Passed            int       `json:"passed"`
	Connections       int       `json:"connections"`
	Events            int       `json:"events"`
	DoubleChanges     int       `json:"double_changes"`
	BrokenBackendDied int       `json:"broken_backend_died"`
	Broken            int       `json:"broken"`
	Misdirected       int       `json:"misdirected"`
	P99StallMS        int64     `json:"p99_stall_ms"` // the largest of any run
	Results           []outcome `json:"results"`
}

func summaryOf(done []outcome) summary {
	s := summary{Runs: len(done), Results: done}
	for _, o := range done {
		if len(o.Faults) == 0 {
			s.Passed++
		}
		if r := o.report; r != nil {
			s.Connections += r.Connections
			s.Events += r.Events
			s.DoubleChanges += r.DoubleChanges
			s.BrokenBackendDied += r.BrokenBackendDied
			s.Broken += r.Broken
			s.Misdirected += r.Misdirected
			s.P99StallMS = max(s.P99StallMS, r.P99StallMS)
		}
	}
	return s
}

func (c *campaign) summarise(done []outcome) error {
	s := summaryOf(done)
	if c.json {
		encoder := json.NewEncoder(c.out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(struct {
			Summary summary `json:"summary"`
		}{s})
	}
	if c.compare {
		return printTable(c.out, done)
	}
	_, err := fmt.Fprintf(c.out, "\n%d of %d runs passed: %d connections, %d events, %d double changes, %d broken, %d misdirected packets\n",
		s.Passed, s.Runs, s.Connections, s.Events, s.DoubleChanges, s.Broken, s.Misdirected)
	return err
}

// column is a column of a comparison's table.
type column struct {
	title string
	of    func(r *report) string
}

// columns are those of the table in docs/results/chaos.md.
var columns = []column{
	{"TCP connections", func(r *report) string { return strconv.Itoa(r.TCP.Connections) }},
	{"broken", func(r *report) string { return strconv.Itoa(r.TCP.Broken) }},
	{"UDP flows", func(r *report) string { return strconv.Itoa(r.UDP.Connections) }},
	{"broken", func(r *report) string { return strconv.Itoa(r.UDP.Broken) }},
	{"QUIC connections", func(r *report) string { return ifQUIC(r, r.QUIC.Connections) }},
	{"broken", func(r *report) string { return ifQUIC(r, r.QUIC.Broken) }},
	{"misdirected", func(r *report) string { return strconv.Itoa(r.Misdirected) }},
	{"99 % of answers within", func(r *report) string { return fmt.Sprintf("%d ms", r.P99StallMS) }},
	{"events", func(r *report) string { return strconv.Itoa(r.Events) }},
}

// ifQUIC returns a figure of QUIC connections, if the run has any.
func ifQUIC(r *report, n int) string {
	if r.QUICLeftOut != "" {
		return "-"
	}
	return strconv.Itoa(n)
}

// printTable prints runs in Markdown. Unfinished runs have no figures.
func printTable(w io.Writer, done []outcome) error {
	several := slices.ContainsFunc(done, func(o outcome) bool { return o.Seed != done[0].Seed })
	var text strings.Builder
	line := func(cells ...string) { fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | ")) }
	head, rule := []string{"mode"}, []string{"---"}
	for _, c := range columns {
		head, rule = append(head, c.title), append(rule, "---")
	}
	line(head...)
	line(rule...)
	for _, o := range done {
		name := "`" + o.Mode + "`"
		if several {
			name += fmt.Sprintf(" (seed %d)", o.Seed)
		}
		cells := []string{name}
		for _, c := range columns {
			if o.report == nil {
				cells = append(cells, "-")
				continue
			}
			cells = append(cells, c.of(o.report))
		}
		line(cells...)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
