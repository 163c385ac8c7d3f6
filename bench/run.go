package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/machine"
	"weir.io/weir/bench/report"
	"weir.io/weir/lab/record"
)

const (
	resultsDirectory = "bench/results"
	document         = "docs/results/benchmarks.md"
)

// With these a complete run takes a quarter of an hour on two cores. At least five rounds are
// needed to tell a change from noise.
const (
	defaultRounds = 5
	defaultSample = 250 * time.Millisecond
	smokeSample   = 30 * time.Millisecond
)

type runOptions struct {
	settings   record.Settings
	json, docs bool
	out, base  string
	soak       soakTime
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
			"say of it. When a scenario breaks the others still run; an interrupted run prints the\n" +
			"scenarios that were done, and writes no file.",
		ValidArgs: scenarioNames(), Args: cobra.OnlyValidArgs,
		RunE: func(cmd *cobra.Command, names []string) error { return o.run(cmd, names) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.json, "json", false, "print the record as one JSON object instead of tables")
	flags.IntVar(&o.settings.Rounds, "rounds", defaultRounds, "how often everything is measured")
	flags.DurationVar(&o.settings.Sample, "sample", defaultSample, "how long one subject is measured in one round")
	flags.BoolVar(&o.settings.Smoke, "smoke", false, "only show that the harness works: one short round")
	flags.StringVar(&o.out, "out", "", "write the record to this `file`, whose directory must be there")
	flags.DurationVar(&o.soak.duration, "duration", defaultSoak.duration, "how long soak lasts")
	flags.DurationVar(&o.soak.every, "every", defaultSoak.every, "how often soak changes something")
	flags.StringVar(&o.base, "base", "", "commit that rows, versions and segments compare with, instead of the one before what they are about")
	flags.BoolVar(&o.docs, "docs", false, "write "+document+" and its figures, of a complete run that went well")
	return cmd
}

func (o *runOptions) run(cmd *cobra.Command, names []string) error {
	chosen := choose(names, o.settings.Smoke)
	all := everything(chosen)
	if err := o.settle(cmd, all); err != nil {
		return err
	}
	ctx, progress := cmd.Context(), cmd.ErrOrStderr()
	r := &record.Record{
		Format: record.Format, Started: time.Now().UTC().Truncate(time.Second), Commit: machine.Commit(ctx),
		Machine: machine.Describe(ctx), Settings: o.settings, Scenarios: []record.Scenario{},
	}
	path := o.out
	if path == "" && all && !o.settings.Smoke {
		path = filepath.Join(resultsDirectory, r.FileName())
	}
	fmt.Fprintf(progress, "%s, %s, %v of each subject in each\n", counted(len(chosen), "scenario"), counted(o.settings.Rounds, "round"), o.settings.Sample)
	broken := measure(ctx, r, chosen, o, progress)
	r.Checks = judge(r)
	if ctx.Err() != nil { // existing results are printed, but are not the record of a run
		path, o.docs = "", false
	}
	if o.docs && broken != nil {
		broken = errors.Join(broken, errors.New(document+" stays as it was: not every scenario could be measured"))
		o.docs = false
	}
	return errors.Join(broken, o.publish(cmd, r, path))
}

// counted is a number of things: 1 scenario, 2 scenarios.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}

// settle makes the settings of a smoke run, and refuses settings that measure nothing, or that
// would replace the document by an incomplete one.
func (o *runOptions) settle(cmd *cobra.Command, all bool) error {
	if o.settings.Smoke {
		if !cmd.Flags().Changed("rounds") {
			o.settings.Rounds = 1
		}
		if !cmd.Flags().Changed("sample") {
			o.settings.Sample = smokeSample
		}
	}
	if err := placeFor(o.out); err != nil {
		return err
	}
	if o.settings.Smoke {
		o.soak = smokeSoak
	}
	switch {
	case o.soak.every < leastSoak:
		return fmt.Errorf("--every %v is less than %v, which a change takes", o.soak.every, leastSoak)
	case o.settings.Rounds < 1:
		return fmt.Errorf("--rounds %d: there must be one at least", o.settings.Rounds)
	case o.settings.Sample < smokeSample:
		return fmt.Errorf("--sample %v is too short: less than the %v of a smoke run shows some subjects nothing", o.settings.Sample, smokeSample)
	case o.docs && o.settings.Smoke:
		return errors.New("--docs would put the figures of a smoke run, which mean nothing, into " + document)
	case o.docs && !all:
		return errors.New("--docs writes " + document + ", which has every scenario: name none to run all of them, " +
			"or write another document with bench report --out")
	}
	return nil
}

// choose returns the scenarios with these names, in the order of the list. Without names it returns
// all except those that run only when named.
func choose(names []string, smoke bool) []scenario {
	var chosen []scenario
	for _, s := range scenarios {
		if len(names) == 0 && (s.when == always || s.when == named && smoke) || slices.Contains(names, s.name) {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

// everything reports whether all scenarios of a complete run are chosen.
func everything(chosen []scenario) bool {
	for _, s := range scenarios {
		if s.when == always && !slices.ContainsFunc(chosen, func(c scenario) bool { return c.name == s.name }) {
			return false
		}
	}
	return true
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// measure runs the scenarios one after the other. If one fails, the others still run; an
// interruption drops the running one.
func measure(ctx context.Context, r *record.Record, chosen []scenario, o *runOptions, progress io.Writer) error {
	var problems []error
	for i, s := range chosen {
		into := record.Scenario{Name: s.name, What: s.what, Notes: slices.Clone(s.notes), Measurements: []*record.Measurement{}}
		fmt.Fprintf(progress, "\n%s (%d of %d): %s\n", s.name, i+1, len(chosen), s.what)
		began := time.Now()
		session := &session{settings: r.Settings, into: &into, base: o.base, soak: o.soak, progress: progress}
		err := errors.Join(s.run(ctx, session), session.close())
		into.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
		if ctx.Err() != nil {
			// A stopped scenario's error tells nothing new, unless its clean-up failed, which is an
			// error besides the context's.
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

// placeFor refuses a path to which no file can be written, before hours are spent on the file. It
// makes no directory: it would make a misspelled one, too.
func placeFor(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("--out %s: is a directory; name a file in it", path)
	}
	directory := filepath.Dir(path)
	if info, err := os.Stat(directory); err != nil || !info.IsDir() {
		return fmt.Errorf("--out %s: there is no directory %s", path, directory)
	}
	return nil
}
