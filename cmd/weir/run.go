package main

import (
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/director"
	"weir.io/weir/internal/logs"
	"weir.io/weir/internal/privilege"
)

func newRun() *cobra.Command {
	deps := director.Deps{Version: version}
	var log logs.Flags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run a director",
		Long: "run forwards what the file says. It follows the file: a change is applied at once,\n" +
			"or on SIGHUP; a bad file changes nothing and is logged. Forwarding goes on when the\n" +
			"process ends, and the next one takes it over; weir detach ends it. With\n" +
			"--grace-period, SIGTERM ends it too, after that time: a second SIGTERM ends only the process,\n" +
			"and so does SIGUSR2, which says that another one takes over.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			deps.Signals = heard()
			var err error
			if deps.Log, err = logger(&log, cmd.ErrOrStderr()); err != nil {
				return err
			}
			for flag, period := range map[string]time.Duration{"grace-period": deps.GracePeriod, "shutdown-grace-period": deps.ShutdownGracePeriod} {
				if period < 0 {
					return usagef("--%s %v is less than nothing", flag, period)
				}
			}
			deps.BFD = append([]string{"bfd", "--bpffs", deps.BPFFS}, log.Args()...)
			d, err := director.New(deps)
			if err != nil {
				return privilege.NameOwner(err)
			}
			return privilege.NameOwner(d.Run(cmd.Context()))
		},
	}
	cmd.Flags().StringVarP(&deps.File, "config", "c", defaultConfig, "configuration `file`")
	cmd.Flags().StringVar(&deps.Socket, "socket", api.DefaultSocket, "unix `socket` to answer on")
	cmd.Flags().DurationVar(&deps.GracePeriod, "grace-period", 0, "on SIGTERM withdraw the VIPs, forward for this `time`, then detach; 0: end at once, forwarding goes on")
	cmd.Flags().DurationVar(&deps.ShutdownGracePeriod, "shutdown-grace-period", 5*time.Second, "the same if SIGUSR1 came first, which says that the host shuts down")
	cmd.Flags().DurationVar(&deps.GracePeriod, "drain", 0, "")
	_ = cmd.Flags().MarkDeprecated("drain", "it is called --grace-period now")
	addBPFFS(cmd, &deps.BPFFS)
	log.Add(cmd)
	return cmd
}
