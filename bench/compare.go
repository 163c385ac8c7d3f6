package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/compare"
	"weir.io/weir/bench/record"
)

func newCompare() *cobra.Command {
	var asJSON bool
	var percent float64
	cmd := &cobra.Command{
		Use:   "compare OLD.json NEW.json",
		Short: "Say what got slower or faster by more than its noise",
		Long: "compare looks at every measurement that both records have. Where a scenario has a\n" +
			"reference (redirect, swap or direct), it compares the per-round ratios to it: the\n" +
			"machine may be slower today. A change counts when the Mann-Whitney test finds it at\n" +
			"p <= 0.01 and the middle halves of the rounds lie apart.",
		Args: cobra.ExactArgs(2),
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
			if !cmd.Flags().Changed("fail-if-slower") {
				return nil
			}
			if slower := result.Slower(percent); len(slower) > 0 {
				return fmt.Errorf("%d measurements are slower by more than %g %%", len(slower), percent)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.Flags().Float64Var(&percent, "fail-if-slower", 0, "exit with 1 when something got slower by more than this `percent`")
	return cmd
}

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
