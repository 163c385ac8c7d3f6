package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/machine"
	"weir.io/weir/bench/record"
	"weir.io/weir/bench/report"
)

const (
	resultsDirectory = "bench/results"
	document         = "docs/benchmarks.md"
)

// With these all scenarios together take less than a quarter of an hour on two cores,
// and five rounds are the fewest from which a change can be told from noise.
const (
	defaultRounds = 5
	defaultSample = 250 * time.Millisecond
	smokeSample   = 30 * time.Millisecond
)

type runOptions struct {
	settings     record.Settings
	json, strict bool
	docs         bool
	out          string
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [SCENARIO...]",
		Short: "Measure: all scenarios, or those named",
		Long: "run measures in network namespaces of its own and needs root. Progress goes to\n" +
			"stderr, the result to stdout. A run of all scenarios is also written to\n" +
			resultsDirectory + "/DATE-COMMIT.json; one of some of them, or a smoke run, only with\n" +
			"--out. The exit status is 0 when everything could be measured, whatever the checks\n" +
			"say of it. When a scenario breaks the others still run; an interrupted run prints\n" +
			"the scenarios that were done, and writes no file.",
		RunE: func(cmd *cobra.Command, names []string) error { return o.run(cmd, names) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.json, "json", false, "print the record as one JSON object instead of tables")
	flags.IntVar(&o.settings.Rounds, "rounds", defaultRounds, "how often everything is measured")
	flags.DurationVar(&o.settings.Sample, "sample", defaultSample, "how long one subject is measured in one round")
	flags.BoolVar(&o.settings.Smoke, "smoke", false, "only show that the harness works: one short round")
	flags.StringVar(&o.out, "out", "", "write the record to this file")
	flags.BoolVar(&o.docs, "docs", false, "write "+document+" and its figures")
	flags.BoolVar(&o.strict, "strict", false, "exit with 1 when a check is missed")
	return cmd
}

func (o *runOptions) run(cmd *cobra.Command, names []string) error {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	if err := o.settle(cmd); err != nil {
		return err
	}
	ctx, progress := cmd.Context(), cmd.ErrOrStderr()
	r := &record.Record{
		Format: record.Format, Started: time.Now().UTC().Truncate(time.Second), Commit: machine.Commit(ctx),
		Machine: machine.Describe(ctx), Settings: o.settings, Scenarios: []record.Scenario{},
	}
	path := o.out
	if path == "" && len(chosen) == len(scenarios) && !o.settings.Smoke {
		path = filepath.Join(resultsDirectory, r.FileName())
	}
	if o.docs && path == "" {
		return errors.New("--docs names the record's file: run all scenarios, or give --out")
	}
	fmt.Fprintf(progress, "%d scenarios, %d rounds, %v of each subject in each\n", len(chosen), o.settings.Rounds, o.settings.Sample)
	broken := measure(ctx, r, chosen, progress)
	r.Checks = judge(r)
	if ctx.Err() != nil { // what there is gets printed, but is no record of a run
		path, o.docs = "", false
	}
	return errors.Join(broken, o.publish(cmd, r, path), o.strictly(r))
}

// settle makes the settings of a smoke run, and refuses those that measure nothing.
func (o *runOptions) settle(cmd *cobra.Command) error {
	if o.settings.Smoke {
		if !cmd.Flags().Changed("rounds") {
			o.settings.Rounds = 1
		}
		if !cmd.Flags().Changed("sample") {
			o.settings.Sample = smokeSample
		}
	}
	if o.settings.Rounds < 1 || o.settings.Sample <= 0 {
		return errors.New("--rounds and --sample must be more than 0")
	}
	return nil
}

// choose returns the scenarios of these names in the order of the list, all of them
// without names.
func choose(names []string) ([]scenario, error) {
	for _, name := range names {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			return nil, fmt.Errorf("there is no scenario %q (see bench list)", name)
		}
	}
	var chosen []scenario
	for _, s := range scenarios {
		if len(names) == 0 || slices.Contains(names, s.name) {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

// measure runs the scenarios one after the other. One that fails keeps none of the
// others from running; an interruption drops the one that it met.
func measure(ctx context.Context, r *record.Record, chosen []scenario, progress io.Writer) error {
	var problems []error
	for i, s := range chosen {
		into := record.Scenario{Name: s.name, What: s.what, Measurements: []*record.Measurement{}}
		fmt.Fprintf(progress, "\n%s (%d of %d): %s\n", s.name, i+1, len(chosen), s.what)
		began := time.Now()
		err := s.run(ctx, &session{settings: r.Settings, into: &into, progress: progress})
		into.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
		if ctx.Err() != nil {
			// What the scenario says of being stopped tells nothing new, unless its
			// clean-up failed, which is an error beside the context's.
			return errors.Join(append(problems, interrupted(s.name, err))...)
		}
		if err != nil {
			into.Error = err.Error()
			problems = append(problems, fmt.Errorf("%s: %w", s.name, err))
			fmt.Fprintf(progress, "%s ended with an error: %v\n", s.name, err)
		}
		r.Scenarios = append(r.Scenarios, into)
		fmt.Fprintf(progress, "%s took %.1f s\n", s.name, into.Seconds)
	}
	return errors.Join(problems...)
}

func interrupted(name string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted during %s", name)
	}
	return fmt.Errorf("interrupted during %s: %w", name, err)
}

// publish writes the record wherever it was asked for. Printing comes last, when the
// files are safe.
func (o *runOptions) publish(cmd *cobra.Command, r *record.Record, path string) error {
	var problems []error
	if path != "" {
		if err := r.Write(path); err != nil {
			problems = append(problems, err)
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "\nthe record is in %s\n", path)
		}
	}
	if o.docs {
		problems = append(problems, writeDocument(cmd.ErrOrStderr(), r, path, document))
	}
	if o.json {
		problems = append(problems, r.Encode(cmd.OutOrStdout()))
	} else {
		problems = append(problems, report.Text(cmd.OutOrStdout(), r))
	}
	return errors.Join(problems...)
}

func (o *runOptions) strictly(r *record.Record) error {
	var missed []string
	for _, c := range r.Checks {
		if !c.OK {
			missed = append(missed, c.Name)
		}
	}
	if !o.strict || len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("%d checks are missed: %s", len(missed), strings.Join(missed, ", "))
}
