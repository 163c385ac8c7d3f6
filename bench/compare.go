package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/compare"
	"weir.io/weir/lab/record"
)

func newCompare() *cobra.Command {
	var asJSON bool
	var limit percentage
	references := strings.Join(record.References(), ", ")
	cmd := &cobra.Command{
		Use:   "compare OLD.json NEW.json",
		Short: "Say what got slower or faster by more than its noise",
		Long: "compare looks at every measurement that both records have; there must be one. Where\n" +
			"a scenario has a reference, the first of\n" +
			references + ",\n" +
			"it compares the per-round ratios to it: the machine may be slower today. A change\n" +
			"counts when the Mann-Whitney test finds it at p <= 0.01 and the middle halves of the\n" +
			"rounds lie apart. With --fail-if-slower what a reference itself measured is shown,\n" +
			"and does not count: that is the machine's change.",
		Args: takes(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			old, err := record.Read(args[0])
			if err != nil {
				return err
			}
			new, err := record.Read(args[1])
			if err != nil {
				return err
			}
			result := compare.Records(old, new)
			if err := printResult(cmd, result, asJSON); err != nil {
				return err
			}
			if result.Compared == 0 {
				return compare.ErrNothingInCommon
			}
			if !limit.given {
				return nil
			}
			if _, left := result.Slower(limit.value); len(left) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s of a reference (%s) got slower by more than %v: the machine did, and it does not count\n",
					counted(len(left), "measurement"), references, &limit)
			}
			return result.NoneSlower(limit.value)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.Flags().Var(&limit, "fail-if-slower", "exit with 1 when something got slower by more than this: 5, or 5%")
	return cmd
}

// percentage is the value of a flag: 5 and 5% are the same.
type percentage struct {
	value float64
	given bool
}

// Set reads a percentage that is not negative.
func (p *percentage) Set(text string) error {
	value, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(text, "%")), 64)
	if err != nil || !(value >= 0) || !record.Number(value).Finite() {
		return errors.New("not a percentage of 0 or more, such as 5 or 5%")
	}
	p.value, p.given = value, true
	return nil
}

func (p *percentage) String() string { return strconv.FormatFloat(p.value, 'g', -1, 64) + " %" }

// Type is the name of the value in help.
func (p *percentage) Type() string { return "percent" }

func printResult(cmd *cobra.Command, result *compare.Result, asJSON bool) error {
	if !asJSON {
		return result.Print(cmd.OutOrStdout())
	}
	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(result); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}
