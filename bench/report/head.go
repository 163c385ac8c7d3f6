package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"weir.io/weir/lab/record"
)

// method explains what all tables have in common.
const method = `## How it was measured

Everything runs on one machine, in network namespaces that the harness makes and removes. A scenario measures all of its subjects once per round, one after the other, so that a slow moment of the machine meets all of them.

A cell is the median of the rounds, and in parentheses the middle half of them (the 25th and the 75th percentile). Ratios are made within each round, and then the median of these ratios is taken: it is less noisy than the ratio of two medians, and it is what the checks judge.

The reference is ` + "`redirect`" + ` (a program that only hands each frame on, to another interface), else ` + "`reflect`" + ` (one that sends it back where it came from), else ` + "`swap`" + ` (one that swaps the MAC addresses and does nothing else, run by itself), else ` + "`direct`" + ` (no balancer).

A cost is the balancer's own time per packet, with what the generator and the sink take subtracted; a check in which one was not above 0 in some round is too noisy to tell anything, whatever its median. Absolute figures depend on the machine and on its moment; ratios travel better.

A cell with ` + "`-`" + ` was not measured under these conditions, or the condition means nothing to that subject: what would say nothing new is left out, so that a run takes a quarter of an hour, and a reference has no ratio to itself. ` + "`n/a`" + ` is a value that a round lacks.

`

// begin writes the text before the scenarios: the document's source, the checks, the machine, the
// method.
func (g Guide) begin(w io.Writer, r *record.Record, source string) {
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
	if names := g.absent(r); names != "" {
		fmt.Fprintf(w, "Of the scenarios that there are, this run did not have: %s.\n\n", names)
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
