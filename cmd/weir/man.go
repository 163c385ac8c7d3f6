package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manSection is the section of commands for administrators.
const manSection = "8"

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages into a directory",
		Long: "man writes a manual page for each command, weir.8 and weir-COMMAND.8. They say what\n" +
			"--help says, of this very program. Their date is SOURCE_DATE_EPOCH where that is set.",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("make the directory of the manual pages: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // else each build's pages differ by the day
			header := &doc.GenManHeader{Section: manSection, Source: "weir " + version, Manual: "weir"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("write the manual pages: %w", err)
			}
			return nil
		},
	}
}
