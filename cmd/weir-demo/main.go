// Command weir-demo shows weir at work in network namespaces: make demo. It is a program of its own
// because users do not run laboratories: weir has nothing of them in it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"weir.io/weir/internal/logs"
	"weir.io/weir/lab/demo"
)

const usage = `Usage: weir-demo [flags]

Builds a client, a router, two directors and three backends in network namespaces, runs weir
in them, and sends HTTP and UDP through every mode and family while a director is lost and
comes back, weir run is killed with -9, backends are added, drained and removed, and one is
lost. The router is FRR, which learns from the directors by BGP and BFD; where it is not
installed the routes are set by hand, and no director is lost. It needs root, touches nothing
outside its namespaces, and removes them.

The exit status is 0 if nothing failed, 1 if something did, 2 if the command line is wrong.

Flags:
`

type options struct {
	weir       string
	duration   time.Duration
	json, hold bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command line and returns its exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "weir-demo:", err)
		return 2
	}
	if err := run(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "weir-demo:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("weir-demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.weir, "weir", "", "`path` of the weir to run; without it, the one beside this program")
	flags.DurationVar(&o.duration, "duration", 30*time.Second, "how long backends are added, drained and removed; the rest takes some ten seconds more")
	flags.BoolVar(&o.json, "json", false, "print the result as JSON")
	flags.BoolVar(&o.hold, "hold", false, "keep the lab until interrupted, and print how to look around in it")
	err = flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stderr, usage)
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return o, err
	case err != nil:
		return o, err
	case flags.NArg() > 0:
		return o, fmt.Errorf("it takes no arguments, and got %q", flags.Args())
	case o.duration < demo.MinDuration:
		return o, fmt.Errorf("--duration %v is too short: at least %v", o.duration, demo.MinDuration)
	}
	return o, nil
}

func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	if o.weir == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the weir beside this program: %w", err)
		}
		o.weir = filepath.Join(filepath.Dir(self), "weir")
	}
	weir, err := filepath.Abs(o.weir)
	if err == nil {
		_, err = os.Stat(weir)
	}
	if err != nil {
		return fmt.Errorf("find weir: %w; --weir names another one", err)
	}
	settings := demo.Options{
		Weir: weir, Duration: o.duration,
		Progress: stderr, Terminal: logs.IsTerminal(stderr),
		Done: func(r *demo.Report) error { return o.print(stdout, r) },
	}
	if o.hold {
		settings.Hold = func(ctx context.Context, guide string) {
			fmt.Fprint(stderr, guide)
			<-ctx.Done()
		}
	}
	report, err := demo.Run(ctx, settings)
	if err != nil {
		return err
	}
	return report.Err()
}

func (o options) print(w io.Writer, r *demo.Report) error {
	if !o.json {
		return r.Print(w)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
