// Command reactions measures how quickly traffic follows changes in a cluster: pods that become
// ready or are told to end, Services, rolling updates. It prints a scenario of bench's record;
// "bench run kubernetes" runs it. It is a separate program because it needs Kubernetes' client, and
// bench is built without it.
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

	"weir.io/weir/kube/test/site"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often everything is measured")
	flag.BoolVar(&o.smoke, "smoke", false, "only show that it works: one of each")
	flag.StringVar(&o.mode, "mode", "nat", "how packets get to pods: nat, or gue or ipip with agents on the pods' nodes, by directors of a DirectorGroup; or own: nat, by directors of their own that share an etcd")
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
	mode        string
	programs    site.Programs
	definitions string
}

// own is the mode with directors of their own. Their file has the values that
// docs/operate/kubernetes-directors.md recommends for such directors; a DirectorGroup has its defaults.
const (
	own                    = "own"
	ownNotice, ownCoalesce = 100 * time.Millisecond, 5 * time.Millisecond
)

// run builds the lab, measures and prints.
func (o *options) run(ctx context.Context) (err error) {
	size := site.Options{Programs: o.programs, Definitions: o.definitions, Nodes: 3, Slots: 8, Edges: 3}
	switch o.mode {
	case "nat", "gue", "ipip":
	case own:
		size.Directors, size.Edges, size.OwnCoalesce, size.OwnNotice = 2, 2, ownCoalesce, ownNotice
	default:
		return fmt.Errorf("unknown mode %q (one of nat, gue, ipip, own)", o.mode)
	}
	lab, err := netlab.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	began := time.Now()
	s, err := site.New(ctx, lab, size)
	if err != nil {
		return fmt.Errorf("build the lab: %w", err)
	}
	say("  the lab is there after %.1f s", time.Since(began).Seconds())
	m := &measuring{Site: s, mode: o.mode, into: &record.Scenario{}, perRound: perRound}
	if o.smoke {
		m.perRound = each{pods: 1, services: 1, nodes: 1, rolled: 2}
	}
	if err := m.all(ctx, o.rounds); err != nil {
		return fmt.Errorf("%w\n%s", err, s.Logs())
	}
	return json.NewEncoder(os.Stdout).Encode(m.into)
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
