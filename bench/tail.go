package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/procfs"

	"weir.io/weir/bench/queues"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

var (
	inTime = record.Quantity{Name: "late-p99", Unit: "ms", Better: record.Lower}
	idle   = record.Quantity{Name: "cpu-idle", Unit: "1", Better: record.Higher}
	inTurn = record.Quantity{Name: "degraded", Unit: "1", Better: record.Lower}
)

// Servers, and how long each of their requests takes.
const (
	tailServers = 48
	tailService = 25 * time.Millisecond
	tailSamples = 12
	tailSettle  = 500 * time.Millisecond
	checkedLoad = "0.8"
)

var tailLoads = []float64{0.3, 0.5, 0.7, 0.8, 0.9}

// leastIdle is the share of the cores' time that must stay idle: with less, requests would wait for
// cores, not for servers.
const leastIdle = 0.1

var tailNotes = slices.Concat([]string{
	"48 servers, each of which answers one request at a time, in the order in which connections came; a request takes 25 ms, by a timer: no core is busy with it. The paper's takes 1 ms of a core, of 48 cores; here 38,400 connections a second would make two cores the queue. The time is what is scaled: 25 ms are 1,536 connections a second at load 0.8, and the latencies are as many times longer",
	"requests are a Poisson process: they come whatever became of those before them, each over a connection of its own, and latency is from when a request was to begin. load 1: all servers are busy all the time",
	"dsr random: mode `l2dsr`, `maglev`, which chooses by a hash and remembers nothing; the others are mode `redirect` with policies `random`, `round-robin`, `p2c` and `least-conn`. The last two go by the loads that agents report as often as they may (docs/internals/loads.md): a twentieth of a CPU each. The servers of dsr are hosts of their own without agents, those of redirect are addresses of three hosts with one",
	"cpu-idle is the share of the cores' time that nobody used who would not give way, late-p99 how much later than they should requests began: both say whether the machine was in the way. degraded is how often p2c or least-conn began to go in turn meanwhile, because reports were missing",
	"the paper's figure 11 is of 48 servers like these; its round-robin has the lowest tail up to where all servers are busy",
}, fileNotes)

// queueing is a kind of server, and its measured quantities.
type queueing struct {
	build                          func(context.Context, *netlab.Lab, int) (*queues.Lab, error)
	p50, p99, late, idle, degraded record.Quantity
}

// timed servers answer when a timer says so.
var timed = queueing{
	build: func(ctx context.Context, lab *netlab.Lab, servers int) (*queues.Lab, error) {
		return queues.New(ctx, lab, servers, tailService)
	},
	p50: latency50, p99: latency99, late: inTime, idle: idle, degraded: inTurn,
}

// measureTail measures how policies affect queues.
func measureTail(ctx context.Context, s *session) error {
	if err := errors.Join(s.measureQueues(ctx, timed), s.close()); err != nil {
		return err
	}
	return s.measureQueues(ctx, files)
}

// measureQueues measures one kind of servers by all ways and loads.
func (s *session) measureQueues(ctx context.Context, kind queueing) error {
	servers, loads, settle := tailServers, tailLoads, tailSettle
	if s.settings.Smoke {
		servers, loads, settle = 4, []float64{0.5}, 0
	}
	l, err := inLab(ctx, s, func(ctx context.Context, lab *netlab.Lab) (*queues.Lab, error) { return kind.build(ctx, lab, servers) })
	if err != nil {
		return err
	}
	// No garbage is collected during measurements: it would stop clients and servers.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	// And a thread that returns from a system call finds a free processor of Go's.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4 * runtime.NumCPU()))
	var steps []func(context.Context) error
	for _, load := range loads {
		for _, w := range queues.Ways {
			steps = append(steps, func(ctx context.Context) error { return s.queue(ctx, l, w, kind, load, settle) })
		}
	}
	return s.inRounds(ctx, steps...)
}

// queue measures a way at one load once.
func (s *session) queue(ctx context.Context, l *queues.Lab, w *queues.Way, kind queueing, load float64, settle time.Duration) error {
	before, err := cores()
	if err != nil {
		return err
	}
	r, err := l.Measure(ctx, w, load, settle, tailSamples*s.sample())
	if err != nil {
		return err
	}
	after, err := cores()
	if err != nil {
		return err
	}
	at := tailAt(strconv.FormatFloat(load, 'g', -1, 64))
	s.add(w.Name, at, kind.p50, milliseconds(r.P50))
	s.add(w.Name, at, kind.p99, milliseconds(r.P99))
	s.add(w.Name, at, kind.late, milliseconds(r.Late))
	s.add(w.Name, at, kind.idle, idleShare(before, after))
	s.add(w.Name, at, kind.degraded, float64(r.Degraded))
	return nil
}

func tailAt(load string) record.Conditions { return record.Conditions{"load": load} }

// turnsToRandom is round-robin's tail divided by that of random placement.
func (kind queueing) turnsToRandom(s *record.Scenario) (float64, error) {
	at := tailAt(checkedLoad)
	value, err := ratio(queues.RoundRobin, queues.Random, at, kind.p99)(s)
	if err != nil {
		return value, err
	}
	for _, name := range []string{queues.RoundRobin, queues.Random} {
		left, err := reading(name, at, kind.idle)(s)
		if err != nil {
			return value, err
		}
		if left < leastIdle {
			return value, fmt.Errorf("%.0f %% of the cores' time were left with %s: requests waited for these", 100*left, name)
		}
	}
	return value, nil
}

// fileSize is the size of the paper's files.
const fileSize = 8 << 10

// files are nginx servers, which wait for their links.
var files = queueing{
	build: func(ctx context.Context, lab *netlab.Lab, servers int) (*queues.Lab, error) {
		return queues.NewFiles(ctx, lab, servers, fileSize, tailService)
	},
	p50:  record.Quantity{Name: "files-p50", Unit: "ms", Better: record.Lower},
	p99:  record.Quantity{Name: "files-p99", Unit: "ms", Better: record.Lower},
	late: record.Quantity{Name: "files-late-p99", Unit: "ms", Better: record.Lower},
	idle: record.Quantity{Name: "files-cpu-idle", Unit: "1", Better: record.Higher},

	degraded: record.Quantity{Name: "files-degraded", Unit: "1", Better: record.Lower},
}

var fileNotes = []string{
	"files: the same with 48 nginx of one worker each, which serve a file of 8 KiB over HTTP, and each of which has a link of its own (a class of HTB, one direction): what is sent waits there, frame by frame, so that the files of several connections take turns. The links are 2.6 Mbit/s, of which the 8 KiB take 25 ms; the other bytes of a connection, which a class's counter tells, take their time besides, and load 1 is that of all of them",
	"files-late-p99, files-cpu-idle and files-degraded are late-p99, cpu-idle and degraded",
}

// cores reads what the cores have done since the machine booted.
func cores() (procfs.CPUStat, error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return procfs.CPUStat{}, fmt.Errorf("what the cores do: %w", err)
	}
	all, err := proc.Stat()
	return all.CPUTotal, err
}

// idleShare is the share of the time between two readings that no program used, except those that
// give way to others (nice).
func idleShare(before, after procfs.CPUStat) float64 {
	idle := func(t procfs.CPUStat) float64 { return t.Nice + t.Idle + t.Iowait }
	all := func(t procfs.CPUStat) float64 { // guests' time is in user's
		return idle(t) + t.User + t.System + t.IRQ + t.SoftIRQ + t.Steal
	}
	if all(after) == all(before) {
		return 1
	}
	return (idle(after) - idle(before)) / (all(after) - all(before))
}
