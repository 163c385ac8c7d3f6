// Command weir-kube is weir's part in a Kubernetes cluster: its controller gives Services of
// type LoadBalancer addresses, and tells directors what to forward.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"weir.io/weir/internal/logs"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command line and returns its exit status. An error is printed here and
// nowhere else.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "weir-kube",
		Short:         "weir's part in a Kubernetes cluster",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newController(), newNode())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	switch err := root.ExecuteContext(ctx); {
	case err == nil, ctx.Err() != nil && errors.Is(err, context.Canceled):
		return 0
	default:
		fmt.Fprintln(stderr, "weir-kube:", err)
		return 1
	}
}

// logger returns a logger that logs as the flags say, including messages of the client library.
func logger(f *logs.Flags, w io.Writer) (*slog.Logger, error) {
	handler, err := f.Handler(w)
	if err != nil {
		return nil, err
	}
	klog.SetLogger(logr.FromSlogHandler(handler))
	return slog.New(handler), nil
}
