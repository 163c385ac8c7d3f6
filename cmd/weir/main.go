// Command weir is a layer-4 load balancer: a director, the agent on backends' hosts, and the
// commands that ask and examine both.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
		fmt.Fprintln(stderr, "weir:", err)
		if !*began {
			err = usageError{err}
		}
	}
	return int(statusOf(err))
}
