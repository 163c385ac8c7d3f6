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
		Long:          "weir is a layer-4 load balancer: run is a director, agent is what runs on the backends, and\nthe other commands ask and examine them.\n\n" + exitHelp(),
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate(versionText())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
	})
	root.AddCommand(
		newRun(), newAgent(), newPlan(), newApply(), newDrain(), newUndrain(), newDetach(),
		newStatus(), newServices(), newBackends(), newFlows(), newSets(), newEvents(), newDirectors(), newBGP(), newBFD(), newExplain(), newTop(),
		newDoctor(), newVersion(), newMan())
	root.AddCommand(newCapture())
	return root
}
