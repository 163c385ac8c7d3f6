// Package demo shows weir at work: it builds a network of namespaces, runs real
// directors and agents in it, sends real HTTP and UDP traffic through every mode
// and family while backends come and go, and reports what failed.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"weir.io/weir/internal/netlab"
)

// MinDuration is the shortest time in which every edit of the files can be made
// and seen.
const MinDuration = 5 * time.Second

// Options say how to run the demo.
type Options struct {
	Weir     string              // path of the program to run
	Duration time.Duration       // of the traffic
	Progress io.Writer           // gets what happens while it happens
	Terminal bool                // Progress is one: its last line is written again and again
	Done     func(*Report) error // gets the result, before the lab is removed
	// Hold is called with the lab still there and with how to look around in it;
	// when it returns the lab is removed; nil: at once.
	Hold func(ctx context.Context, guide string)
}

// Run runs the demo. An interrupted context ends the traffic early; the report is
// of what was seen until then. Everything that the demo made is removed, also
// after an error.
func Run(ctx context.Context, opts Options) (_ *Report, err error) {
	if opts.Duration < MinDuration {
		return nil, fmt.Errorf("a demo of %s is too short: at least %s", opts.Duration, MinDuration)
	}
	lab, err := netlab.New()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p := &progress{w: opts.Progress, terminal: opts.Terminal}
	p.say("building a client, a router, %d directors and %d backends", directors, backends)
	top := newTopology(lab)
	if err := lab.Err(); err != nil {
		return nil, err
	}
	for i, b := range top.backends {
		if err := serve(serving, b, i); err != nil {
			return nil, err
		}
	}
	r := &run{opts: opts, top: top, rows: rows(), stages: stages(), timeline: &timeline{}, progress: p}
	return r.run(ctx)
}

// run is one demo.
type run struct {
	opts     Options
	top      *topology
	rows     []*row
	stages   []stage
	timeline *timeline
	progress *progress
	group    *group
}

func (r *run) run(ctx context.Context) (*Report, error) {
	crossings, err := countCrossings(r.top.watched, r.rows)
	if err != nil {
		return nil, err
	}
	defer crossings.close()
	r.progress.say("starting %d directors and %d agents: %s", directors, backends, r.stages[0].edit)
	if r.group, err = startGroup(ctx, r.opts.Weir, r.top, r.rows, r.stages[0].members); err != nil {
		return nil, err
	}
	traffic := &traffic{client: r.top.client, timeline: r.timeline, stages: r.stages,
		life: r.stageLength() * 9 / 2, tallies: map[*row]*tally{}}
	for _, row := range r.rows {
		traffic.tallies[row] = &tally{}
	}
	r.progress.say("sending HTTP and UDP through %d modes and families for %s", len(r.rows), r.opts.Duration)
	changes, err := r.load(ctx, traffic)
	if err != nil {
		return nil, err
	}
	report := &Report{Changes: changes}
	for _, row := range r.rows {
		line := traffic.tallies[row].row(row)
		if line.Crossed, err = crossings.of(row.vip); err != nil {
			return nil, err
		}
		report.add(line)
	}
	if err := r.opts.Done(report); err != nil {
		return nil, err
	}
	if r.opts.Hold != nil {
		r.opts.Hold(ctx, r.guide())
	}
	return report, nil
}

func (r *run) stageLength() time.Duration { return r.opts.Duration / time.Duration(len(r.stages)) }

// load runs the traffic, and the edits under it, for the demo's duration.
func (r *run) load(ctx context.Context, traffic *traffic) (changes int, err error) {
	// Ended by a timer rather than a deadline: what a deadline ends looks like a
	// timeout of the network.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(r.opts.Duration, cancel).Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		traffic.run(ctx)
	}()
	go r.progress.follow(ctx, r.opts.Duration, traffic)
	begin := time.Now()
	for stage := 1; stage < len(r.stages); stage++ {
		if !sleep(ctx, time.Until(begin.Add(time.Duration(stage)*r.stageLength()))) {
			break
		}
		if err = r.change(ctx, stage); err != nil {
			break
		}
		changes++
	}
	if err != nil {
		cancel()
	}
	<-ended
	r.progress.end()
	if err != nil && ctx.Err() != nil && !errors.Is(err, errDaemonEnded) {
		err = nil // an edit that the end of the demo cut short
	}
	return changes, err
}

// change edits the files towards a stage and waits until the directors follow.
func (r *run) change(ctx context.Context, stage int) error {
	begin := r.timeline.begin(stage)
	defer r.timeline.end()
	err := r.group.edit(ctx, r.stages[stage].members)
	if err == nil {
		r.progress.say("%s: edited the files, applied everywhere after %d ms", r.stages[stage].edit, time.Since(begin).Milliseconds())
	}
	return err
}

// guide tells how to look around in the lab.
func (r *run) guide() string {
	var b strings.Builder
	b.WriteString("The lab is still there. To look around in it:\n")
	enter := func(h *netlab.Host, command string) {
		fmt.Fprintf(&b, "  nsenter --net=/run/netns/%s %s\n", h.Namespace(), command)
	}
	enter(r.top.client, "curl -v http://"+r.rows[0].vip.String()+"/ -d hello")
	enter(r.top.router, "ip route")
	for _, d := range r.group.directors {
		fmt.Fprintf(&b, "  %s services --socket %s\n", r.opts.Weir, d.socket)
		fmt.Fprintf(&b, "  less %s        # edit it: the director follows\n", d.config)
	}
	enter(r.top.backends[0], "tcpdump -ni eth0")
	b.WriteString("Interrupt (Ctrl-C) to remove it.\n")
	return b.String()
}
