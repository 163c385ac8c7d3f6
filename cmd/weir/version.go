package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = "development"

func newVersion() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			about := versionInfo{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return out.write(cmd.OutOrStdout(), about, func(t *table) { t.line(strings.TrimSpace(versionText())) })
		},
	}
	out.add(cmd)
	return cmd
}

// versionInfo is what weir version prints.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionText() string {
	return fmt.Sprintf("weir %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
