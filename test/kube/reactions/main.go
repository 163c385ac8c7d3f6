// Command reactions measures how quickly traffic follows what happens in a cluster: pods that become
// ready or are told to end, Services, rolling updates. It prints a scenario of bench's record; "bench
// run kubernetes" runs it. It is a program of its own because it has Kubernetes' client in it, which
// bench is to be built without.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"weir.io/weir/bench/record"
	"weir.io/weir/internal/netlab"
	"weir.io/weir/test/kube/site"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often everything is measured")
	flag.BoolVar(&o.smoke, "smoke", false, "only show that it works: one of each")
	flag.StringVar(&o.programs.APIServer, "kube-apiserver", "", "`path`")
	flag.StringVar(&o.programs.Controllers, "kube-controller-manager", "", "`path`")
	flag.StringVar(&o.programs.Weir, "weir", "bin/weir", "`path`")
	flag.StringVar(&o.programs.WeirKube, "weir-kube", "bin/weir-kube", "`path`")
	flag.StringVar(&o.definitions, "definitions", "kube/chart/crds", "`directory` of weir's custom resources")
	flag.Parse()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "reactions:", err)
		os.Exit(1)
	}
}

type options struct {
	rounds      int
	smoke       bool
	programs    site.Programs
	definitions string
}

// notice is shorter than by default, 5 s: no director of this lab is behind the other for long, and how
// long changes take is the question. The controller waits for what belongs together, so directors need
// not.
const notice, coalesce = 20 * time.Millisecond, 5 * time.Millisecond

// run builds the lab, measures and prints.
func (o *options) run(ctx context.Context) (err error) {
	lab, err := netlab.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	began := time.Now()
	s, err := site.New(ctx, lab, site.Options{Programs: o.programs, Definitions: o.definitions, Directors: 2, Nodes: 3, Slots: 8, Edges: 2, Coalesce: coalesce, Notice: notice})
	if err != nil {
		return fmt.Errorf("build the lab: %w", err)
	}
	say("  the lab is there after %.1f s", time.Since(began).Seconds())
	m := &measuring{Site: s, into: &record.Scenario{Notes: notes}, perRound: perRound}
	if o.smoke {
		m.perRound = each{pods: 1, services: 1, nodes: 1, rolled: 2}
	}
	if err := m.all(ctx, o.rounds); err != nil {
		return fmt.Errorf("%w\n%s", err, s.Logs())
	}
	return json.NewEncoder(os.Stdout).Encode(m.into)
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
