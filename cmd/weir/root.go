package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

const (
	defaultConfig = "/etc/weir/weir.yaml"
	defaultBPFFS  = "/sys/fs/bpf"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "weir",
		Short:         "A layer-4 load balancer in XDP",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate(versionText())
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
	})
	root.AddCommand(
		newRun(), newAgent(), newApply(), newDrain(), newDetach(),
		newStatus(), newServices(), newBackends(), newFlows(), newDirectors(), newBGP(), newBFD(), newExplain(),
		newDemo(), newDoctor(), newVersion())
	return root
}
