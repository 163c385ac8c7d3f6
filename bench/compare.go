package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"

	"weir.io/weir/lab/record"
)

// certainty is how sure a change, or the bounds of a median, must be: one in a hundred is by chance.
const certainty = 0.99

func newCompare() *cobra.Command {
	return &cobra.Command{
		Use:   "compare OLD.json NEW.json [-- FLAG...]",
		Short: "Compare two records with benchstat",
		Long: "compare hands the rounds of both records to benchstat (golang.org/x/perf), with flags of\n" +
			"its own behind --: for example -filter '.name:flows'. What it marks with ~ did not change\n" +
			"by more than its noise (Mann-Whitney, p <= 0.01). Where a scenario has a reference,\n" +
			"the first of " + strings.Join(record.References(), ", ") + ", it compares the ratios of each round\n" +
			"to it, too: the machine may be slower today. What a reference itself measured tells\n" +
			"of the machine alone.",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			old, errOld := record.Read(args[0])
			new, errNew := record.Read(args[1])
			if err := errors.Join(errOld, errNew); err != nil {
				return err
			}
			for _, warning := range differences(old, new) {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warning)
			}
			return benchstat(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), old, new, args[2:])
		},
	}
}

// benchstat compares two records.
func benchstat(ctx context.Context, out, problems io.Writer, old, new *record.Record, flags []string) (err error) {
	directory, err := os.MkdirTemp("", "bench-compare-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	args := append([]string{"tool", "benchstat", "-alpha", fmt.Sprintf("%.2g", 1-certainty)}, flags...)
	for name, r := range map[string]*record.Record{"old": old, "new": new} {
		file, err := os.Create(filepath.Join(directory, name))
		if err != nil {
			return err
		}
		if err := errors.Join(writeRounds(file, r), file.Close()); err != nil {
			return fmt.Errorf("write the rounds for benchstat: %w", err)
		}
	}
	for _, name := range []string{"old", "new"} {
		args = append(args, name+"="+filepath.Join(directory, name))
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = out, problems
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run benchstat: %w", err)
	}
	return nil
}

// implied are conditions that earlier records do not name: all that they measured had them.
var implied = []string{"tag=none", "mix=" + byCount}

// writeRounds writes a record as Go's benchmarks are written: a line for each value of a round, and
// beside it its ratio to the reference, if there is one.
func writeRounds(w io.Writer, r *record.Record) error {
	writer := benchfmt.NewWriter(w)
	for _, s := range r.Scenarios {
		for _, m := range s.Measurements {
			name := s.Name + "/subject=" + m.Subject
			for _, condition := range m.Conditions.Words() {
				if !slices.Contains(implied, condition) {
					name += "/" + condition
				}
			}
			reference := s.Reference(m)
			for i, value := range m.Rounds {
				if !record.Number(value).Finite() {
					continue
				}
				values := []benchfmt.Value{{Value: value, Unit: unitOf(m.Quantity)}}
				if reference != nil && i < len(reference.Rounds) && record.Number(value/reference.Rounds[i]).Finite() {
					values = append(values, benchfmt.Value{Value: value / reference.Rounds[i], Unit: m.Quantity.Name + "-vs-" + reference.Subject})
				}
				line := &benchfmt.Result{Name: benchfmt.Name(strings.ReplaceAll(name, " ", "_")), Iters: 1, Values: values}
				if err := writer.Write(line); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// unitOf names the quantity with its unit, as benchstat makes a table of each unit.
func unitOf(q record.Quantity) string {
	return strings.TrimSuffix(q.Name+"-"+strings.TrimPrefix(q.Unit, "1"), "-")
}

// differences says what makes two records hard to compare.
func differences(old, new *record.Record) (warnings []string) {
	differ := func(what, old, new string) {
		if old != new {
			warnings = append(warnings, fmt.Sprintf("the %s differs: %s, then %s", what, old, new))
		}
	}
	describe := func(m record.Machine) string { return fmt.Sprintf("%s with %d cores", m.CPU, m.Cores) }
	differ("machine", describe(old.Machine), describe(new.Machine))
	differ("kernel", old.Machine.Kernel, new.Machine.Kernel)
	differ("JIT", fmt.Sprint(old.Machine.JIT), fmt.Sprint(new.Machine.JIT))
	differ("sample", old.Settings.Sample.String(), new.Settings.Sample.String())
	if old.Settings.Smoke || new.Settings.Smoke {
		warnings = append(warnings, "one of the runs was a smoke run, whose figures mean nothing")
	}
	return warnings
}

// interval returns the median of the values and bounds that contain the median of the whole
// population in 99 cases of 100. At least eight values are needed for both bounds to be finite.
func interval(values []float64) (low, median, high float64) { return intervalOf(values, certainty) }

// intervalOf is the same with another certainty. The bounds are order statistics, which assume nothing about the
// distribution.
func intervalOf(values []float64, certainty float64) (low, median, high float64) {
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), certainty)
	return s.Lo, s.Center, s.Hi
}
