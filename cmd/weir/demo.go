package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/demo"
)

type demoOptions struct {
	duration   time.Duration
	out        output
	json, hold bool
}

func newDemo() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show weir at work in network namespaces",
		Long: "demo builds a client, a router, two directors and three backends in network\n" +
			"namespaces, runs weir in them, and sends HTTP and UDP through every mode and family\n" +
			"while a director is lost and comes back, weir run is killed with -9, backends are\n" +
			"added, drained and removed, and one is lost. The router is FRR, which learns from the\n" +
			"directors by BGP and BFD; where it is not installed the routes are set by hand, and\n" +
			"no director is lost. It needs root, touches nothing outside its namespaces, and\n" +
			"removes them. The exit status is 0 only if nothing failed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.json {
				o.out.format = "json"
			}
			if err := o.out.check(); err != nil {
				return err
			}
			if o.duration < demo.MinDuration {
				return usagef("--duration %v is too short: at least %v", o.duration, demo.MinDuration)
			}
			return runDemo(cmd, o)
		},
	}
	cmd.Flags().DurationVar(&o.duration, "duration", 30*time.Second, "how long backends are added, drained and removed; the rest takes some ten seconds more")
	cmd.Flags().BoolVar(&o.json, "json", false, "the same as -o json")
	o.out.add(cmd)
	cmd.MarkFlagsMutuallyExclusive("json", "output")
	cmd.Flags().BoolVar(&o.hold, "hold", false, "keep the lab until interrupted, and print how to look around in it")
	return cmd
}

func runDemo(cmd *cobra.Command, o demoOptions) error {
	weir, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	options := demo.Options{
		Weir: weir, Duration: o.duration,
		Progress: cmd.ErrOrStderr(), Terminal: isTerminal(cmd.ErrOrStderr()),
		Done: func(r *demo.Report) error { return o.print(cmd.OutOrStdout(), r) },
	}
	if o.hold {
		options.Hold = func(ctx context.Context, guide string) {
			fmt.Fprint(cmd.ErrOrStderr(), guide)
			<-ctx.Done()
		}
	}
	report, err := demo.Run(cmd.Context(), options)
	if err != nil {
		return err
	}
	return report.Err()
}

func (o demoOptions) print(w io.Writer, r *demo.Report) error {
	if o.out.format == "table" {
		return r.Print(w)
	}
	return o.out.write(w, r, nil)
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
