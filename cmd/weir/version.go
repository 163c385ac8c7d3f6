package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = "development"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

func versionText() string {
	return fmt.Sprintf("weir %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
