// Package demo shows weir at work: it builds a network of namespaces with a real
// router, runs real directors and agents in it, sends real HTTP and UDP traffic through
// every mode and family while directors and backends come, go and die, and reports what
// failed and how long traffic noticed.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// MinDuration is the shortest time in which every edit of the files can be made
// and seen.
const MinDuration = 5 * time.Second

// Options say how to run the demo.
type Options struct {
	Weir     string              // path of the program to run
	Duration time.Duration       // of the edits of the files; losses come before and after them
	Progress io.Writer           // gets events as they happen
	Terminal bool                // Progress is a terminal: its last line is rewritten in place
	Done     func(*Report) error // gets the result, before the lab is removed
	// Hold is called with a guide to the lab while it still exists; the lab is removed when Hold
	// returns, or at once if Hold is nil.
	Hold func(ctx context.Context, guide string)
}

// Run runs the demo. An interrupted context ends the traffic early; the report covers what was seen
// until then. Everything that the demo made is removed, also after an error.
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
	if r.router, err = startRouter(top, r.rows); err != nil {
		return nil, err
	}
	if r.router == nil {
		p.say("%v: the router's routes are set by hand, and no director is lost", routerlab.ErrNoFRR)
		top.routeByHand()
	} else {
		defer r.router.watch.Close()
	}
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
	router   *router // nil: FRR is not installed
	group    *group
	flows    *newFlows
	losses   []Loss
}

func (r *run) run(ctx context.Context) (*Report, error) {
	crossings, err := countCrossings(r.top.watched, r.rows, clientAddresses)
	if err != nil {
		return nil, err
	}
	defer crossings.close()
	r.progress.say("starting %d directors and %d agents: %s", directors, backends, r.stages[0].edit)
	if r.group, err = startGroup(ctx, r.opts.Weir, r.top, r.rows, r.stages[0].members, r.router != nil); err != nil {
		return nil, err
	}
	for i := range r.group.directors {
		if err := r.settle(ctx, i); err != nil {
			return nil, err
		}
	}
	traffic := &traffic{client: r.top.client, timeline: r.timeline, stages: r.stages,
		life: r.stageLength() * 9 / 2, tallies: map[*row]*tally{}}
	for _, row := range r.rows {
		traffic.tallies[row] = &tally{}
	}
	changes, err := r.load(ctx, traffic)
	if err != nil {
		return nil, err
	}
	report := &Report{Changes: changes, Losses: r.losses, Interrupted: ctx.Err() != nil}
	if r.router != nil {
		report.Router = "FRR"
	}
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
		err = r.hold(ctx)
	}
	return report, err
}

// edits is how many stages are reached by editing the files, the first one included.
func (r *run) edits() int { return len(r.stages) - 1 }

func (r *run) stageLength() time.Duration { return r.opts.Duration / time.Duration(r.edits()) }

// load runs the traffic, and the losses and changes during it.
func (r *run) load(ctx context.Context, traffic *traffic) (changes int, err error) {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	r.flows = &newFlows{client: r.top.client, vips: directVIPs(r.rows)}
	traffic.clients.Go(func() { r.flows.run(running) })
	go r.progress.follow(running, traffic)
	for _, step := range []func() error{
		func() error { return r.loseDirectors(running, traffic) },
		func() error { return r.killProcess(running) },
		func() error { return r.edit(running, &changes) },
		func() error { return r.loseBackend(running, traffic) },
	} {
		if err = step(); err != nil {
			break
		}
	}
	cancel()
	traffic.clients.Wait()
	r.progress.end()
	if ctx.Err() != nil && !errors.Is(err, errDaemonEnded) {
		err = nil // the end of the demo cut the step short
	}
	return changes, err
}

// loseDirectors begins with the traffic that does not break when a director is lost, and then adds
// the rest. Nat's replies go through the directors, so the backends' routes would have to follow,
// too; flows of full NAT are lost with their director.
func (r *run) loseDirectors(ctx context.Context, traffic *traffic) error {
	direct, nat := slices.Clone(r.rows), slices.Clone(r.rows)
	direct = slices.DeleteFunc(direct, func(r *row) bool { return !r.direct() })
	nat = slices.DeleteFunc(nat, (*row).direct)
	if r.router != nil {
		r.progress.say("sending HTTP and UDP by %s, and new flows every %s", modesOf(direct), flowPause)
		traffic.start(ctx, direct)
		if !sleep(ctx, aftermath) {
			return ctx.Err()
		}
		if err := r.loseDirector(ctx); err != nil {
			return err
		}
		if err := r.returnDirector(ctx); err != nil {
			return err
		}
		r.progress.say("sending by %s, too", modesOf(nat))
	} else {
		traffic.start(ctx, direct)
		r.progress.say("sending HTTP and UDP by %s, and new flows every %s", modesOf(r.rows), flowPause)
	}
	traffic.start(ctx, nat)
	sleep(ctx, aftermath)
	return ctx.Err()
}

// edit edits the files for the demo's duration.
func (r *run) edit(ctx context.Context, changes *int) error {
	begin := time.Now()
	for stage := 1; stage < r.edits(); stage++ {
		if !sleep(ctx, time.Until(begin.Add(time.Duration(stage)*r.stageLength()))) {
			return ctx.Err()
		}
		if err := r.change(ctx, stage); err != nil {
			return err
		}
		*changes++
	}
	sleep(ctx, time.Until(begin.Add(r.opts.Duration)))
	return ctx.Err()
}

// change edits the files towards a stage and waits until the directors follow.
func (r *run) change(ctx context.Context, stage int) error {
	begin := r.timeline.start(stage)
	defer r.timeline.end()
	err := r.group.edit(ctx, r.stages[stage].members)
	if err == nil {
		r.progress.say("%s: edited the files, applied everywhere after %d ms", r.stages[stage].edit, time.Since(begin).Milliseconds())
	}
	return err
}

// guide tells how to look around in the lab.
func (r *run) guide(dashboards []*relay) string {
	var b strings.Builder
	b.WriteString("The lab is still there, with some traffic. To look around in it:\n")
	for i, d := range r.group.directors {
		fmt.Fprintf(&b, "  http://%s/        the dashboard of %s\n", dashboards[i].address(), d.host.Name)
	}
	enter := func(h *netlab.Host, command string) {
		fmt.Fprintf(&b, "  nsenter --net=/run/netns/%s %s\n", h.Namespace(), command)
	}
	enter(r.top.client, "curl -v http://"+r.rows[0].vip.String()+"/ -d hello")
	enter(r.top.router, "ip route")
	if r.router != nil {
		enter(r.top.router, "vtysh --vty_socket "+r.top.router.Dir()+"/frr -c 'show bgp summary'")
	}
	asked := r.group.directors[0]
	for _, question := range []string{"top", "events", fmt.Sprintf("explain %s:5555 %s:80/tcp --flags syn", clientAddresses[0], r.rows[0].vip)} {
		fmt.Fprintf(&b, "  %s %s --socket %s\n", r.opts.Weir, question, asked.socket)
	}
	for _, d := range r.group.directors {
		fmt.Fprintf(&b, "  %s services --socket %s\n", r.opts.Weir, d.socket)
		fmt.Fprintf(&b, "  %s bgp --socket %s\n", r.opts.Weir, d.socket)
		fmt.Fprintf(&b, "  less %s        # edit it: the director follows\n", d.config)
	}
	enter(r.top.backends[0], "tcpdump -ni eth0")
	b.WriteString("Interrupt (Ctrl-C) to remove it.\n")
	return b.String()
}
