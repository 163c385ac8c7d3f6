// Command weir is a layer-4 load balancer: a director, the agent on backends' hosts, and the
// commands that ask and examine both.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/logs"
)

// heard are the signals that run and agent take, from the beginning of main on.
var heard = sync.OnceValue(daemon.HearSignals)

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "run" || os.Args[1] == "agent") {
		heard()
	}
	ctx, stop := signal.NotifyContext(context.Background(), daemon.EndSignals...)
	context.AfterFunc(ctx, stop) // a second signal ends what does not look at the context, such as a read
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command line and returns its exit status. An error is printed
// here and nowhere else.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root) // it writes to the current stdout
	began := noteBegin(root)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(stderr, "weir:", shortLines(err.Error()))
		if !*began {
			err = usageError{err}
		}
	}
	return int(statusOf(err))
}

// mostLine bounds a line of an error, in bytes.
const mostLine = 2000

// shortLines leaves out the middle of long lines: an error may repeat an argument, which may be of
// any length, and what a director answers.
func shortLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if len(line) > mostLine {
			line = strings.ToValidUTF8(line[:mostLine/2], "") + " ... " + strings.ToValidUTF8(line[len(line)-mostLine/2:], "")
		}
		b.WriteString(line)
	}
	return b.String()
}

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
		newRun(), newAgent(), newCheck(), newPlan(), newApply(), newDrain(), newUndrain(), newDetach(),
		newStatus(), newServices(), newBackends(), newFlows(), newSets(), newEvents(), newDirectors(), newSegments(), newBGP(), newBFD(), newExplain(), newTop(),
		newDoctor(), newTune(), newVersion(), newMan())
	root.AddCommand(newCapture())
	return root
}

func addBPFFS(cmd *cobra.Command, bpffs *string) {
	cmd.Flags().StringVar(bpffs, "bpffs", defaultBPFFS, "`directory` of the BPF file system, which keeps the datapath")
}

// logger returns a logger as the flags say; wrong flags are an error of the command line.
func logger(f *logs.Flags, w io.Writer) (*slog.Logger, error) {
	handler, err := f.Handler(w)
	if err != nil {
		return nil, usageError{err}
	}
	return slog.New(handler), nil
}
