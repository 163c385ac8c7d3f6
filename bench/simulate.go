package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/machine"
	"weir.io/weir/bench/policies"
	"weir.io/weir/bench/report"
	"weir.io/weir/lab/record"
)

const (
	policiesDocument = "docs/results/policies.md"
	policiesRecord   = resultsDirectory + "/policies.json"
)

type simulateOptions struct {
	settings record.Settings
	docs     bool
}

func newSimulate() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate [SCENARIO...]",
		Short: "Simulate policies, and changes of sites that no lab has room for",
		Long: "simulate needs neither root nor the network. All scenarios take some minutes: " + strings.Join(policies.Names(), ",\n") + ".\n" +
			"The same seed gives the same figures. Progress goes to stderr, the result to stdout.\n" +
			"--docs writes " + policiesDocument + ", and the record that it is made of.",
		ValidArgs: policies.Names(), Args: cobra.OnlyValidArgs,
		RunE: func(cmd *cobra.Command, names []string) error { return o.run(cmd, names) },
	}
	flags := cmd.Flags()
	flags.IntVar(&o.settings.Rounds, "rounds", defaultRounds, "how often everything is simulated, with another seed each time")
	flags.Uint64Var(&o.settings.Seed, "seed", 1, "the first seed")
	flags.BoolVar(&o.settings.Smoke, "smoke", false, "only show that the simulator works: one short round of small clusters")
	flags.BoolVar(&o.docs, "docs", false, "write "+policiesRecord+", "+policiesDocument+" and its figures")
	return cmd
}

func (o *simulateOptions) run(cmd *cobra.Command, names []string) error {
	if o.settings.Smoke && !cmd.Flags().Changed("rounds") {
		o.settings.Rounds = 1
	}
	switch {
	case o.settings.Rounds < 1:
		return fmt.Errorf("--rounds %d: there must be one at least", o.settings.Rounds)
	case o.docs && o.settings.Smoke:
		return errors.New("--docs would put the figures of a smoke run, which mean nothing, into " + policiesDocument)
	case o.docs && len(names) > 0:
		return errors.New("--docs writes " + policiesDocument + ", which has every scenario: name none to simulate all of them")
	}
	r, err := policies.Study{Settings: o.settings, Only: names}.Run(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	r.Started, r.Commit = time.Now().UTC().Truncate(time.Second), machine.Commit(cmd.Context())
	r.Checks = judgeBy(simulated, r)
	if o.docs {
		if err := errors.Join(r.Write(policiesRecord), writeSimulated(cmd.ErrOrStderr(), r, policiesRecord, policiesDocument)); err != nil {
			return err
		}
	}
	return report.Text(cmd.OutOrStdout(), r)
}

// writeSimulated writes the document of a simulation's record.
func writeSimulated(progress io.Writer, r *record.Record, source, path string) error {
	d, err := policies.Document(r, source, path)
	if err != nil {
		return err
	}
	return written(progress, d, path)
}
