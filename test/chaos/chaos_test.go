package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/lab/version"
	"weir.io/weir/test/chaos/schedule"
	"weir.io/weir/test/chaos/traffic"
)

// build returns the versions of weir with the same ABI.
func build(t *testing.T) (list binaries) {
	t.Helper()
	list[schedule.This] = filepath.Join(t.TempDir(), "weir")
	if out, err := exec.Command("go", "build", "-o", list[schedule.This], "../../cmd/weir").CombinedOutput(); err != nil {
		t.Fatalf("build weir: %v\n%s", err, out)
	}
	var err error
	if list[schedule.SameABI], err = version.BuildSameABI(t.Context(), "../..", t.TempDir()); err != nil {
		t.Fatal(err)
	}
	return list
}

// small is a run that is short enough for a test.
func small(t *testing.T) options {
	gue, err := findMode("gue")
	if err != nil {
		t.Fatal(err)
	}
	return options{Options: schedule.Options{Seed: 1, Duration: 6 * time.Second, Directors: 3, Backends: 4}, mode: gue,
		retention: time.Second, connections: 200, flows: 20, quics: 12, weather: weather{loss: 1, synAcks: 5, late: 1}, syncookies: 1,
		patience: 8 * time.Second, progress: io.Discard}
}

// script makes events out of changes of the group.
func script(o options, changes ...func(*schedule.Event)) []schedule.Event {
	var events []schedule.Event
	group := schedule.Begin(o.Options)
	for i, change := range changes {
		e := schedule.Event{At: time.Duration(i+1) * 600 * time.Millisecond, After: group.Clone()}
		change(&e)
		group = e.After
		events = append(events, e)
	}
	return events
}

func director(kind schedule.Kind, i int) func(*schedule.Event) {
	return func(e *schedule.Event) {
		e.Kind, e.Director, e.After.Announced[i] = kind, i, kind != schedule.DirectorRemoved && kind != schedule.DirectorKilled
	}
}

// Directors come, go, die and start again, and a backend dies: no ring changes, so the backend of a
// connection still owns its slot on every director. Only the dead backend's connections break.
func TestOnlyTheDeadBackendsConnectionsBreak(t *testing.T) {
	o := small(t)
	o.binaries = build(t)
	o.shared = true
	o.flows, o.quics = 2*o.flows, 3*o.quics // enough for a third of the backends to have some
	const dead = 2
	events := script(o,
		director(schedule.DirectorCrashed, 0),
		func(e *schedule.Event) { e.Kind, e.After.Queues = schedule.QueuesChanged, 3 },
		director(schedule.DirectorRemoved, 1),
		func(e *schedule.Event) {
			e.Kind, e.Backends, e.After.Backends[dead].State = schedule.BackendsKilled, []int{dead}, schedule.Dead
		},
		director(schedule.DirectorAdded, 2),
		func(e *schedule.Event) { e.Kind = schedule.StoreMemberLost },
		func(e *schedule.Event) {
			e.Kind, e.Backends, e.After.AgentVersions[0] = schedule.AgentUpgraded, []int{0}, schedule.SameABI
		},
		director(schedule.DirectorKilled, 0),
		func(e *schedule.Event) { e.Kind = schedule.StoreMemberBack },
		func(e *schedule.Event) {
			e.Kind, e.Director, e.After.DirectorVersions[2] = schedule.DirectorUpgraded, 2, schedule.SameABI
		},
	)
	o.meanwhile = func(ctx context.Context, h *harness) error {
		return errors.Join(isOther(ctx, h.group.(*group)), moved(ctx, h.tracker, o.quics))
	}
	r, err := run(t.Context(), o, events)
	if err != nil {
		t.Fatal(err)
	}
	if r.Broken != 0 || r.Misdirected != 0 {
		t.Errorf("%d connections broke and %d packets were misdirected, though no ring changed: %+v", r.Broken, r.Misdirected, r.BrokenConnections)
	}
	if died := r.TCP.BrokenBackendDied; died < o.connections/10 || died > o.connections {
		t.Errorf("%d connections broke because backend%d died; of %d it had about a third", died, dead+1, o.connections)
	}
	if r.UDP.BrokenBackendDied == 0 {
		t.Error("no flow was lost with the backend that died")
	}
	if r.QUICConnections < o.quics || r.Migrations < o.quics || r.QUIC.BrokenBackendDied == 0 {
		t.Errorf("%d QUIC connections whose clients moved %d times, %d of which died with the backend; want at least %d, as many, and some",
			r.QUICConnections, r.Migrations, r.QUIC.BrokenBackendDied, o.quics)
	}
	if r.Events != len(events) || r.DoubleChanges == 0 || r.Connections < o.connections+o.flows || r.Exchanges < 3*o.connections || r.CheckedBytes == 0 {
		t.Errorf("too little happened: %+v", r)
	}
	if r.Weather.Lost < 10 || r.Weather.LostSynAcks == 0 || r.Weather.Late < 10 {
		t.Errorf("the weather was too good: %+v", r.Weather)
	}
	if r.OutlivedWindows < 0.3 {
		t.Errorf("%.0f %% of the connections outlived %d retentions, want about half: a third died with the backend", 100*r.OutlivedWindows, retentions)
	}
}

// isOther waits until another version has taken the place of a director and of an
// agent.
func isOther(ctx context.Context, g *group) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		director, agent := api.NewClient(g.directorSockets()["director3"]), api.NewClient(g.agentSockets()["backend1"])
		d, derr := director.Status(ctx)
		a, aerr := agent.AgentStatus(ctx)
		if derr == nil && aerr == nil && d.Version == version.SameABI && a.Version == version.SameABI {
			return nil
		}
		if !sleep(ctx, pollPause) {
			return fmt.Errorf("director3 is version %q (%v), the agent of backend1 %q (%v); want %s", d.Version, derr, a.Version, aerr, version.SameABI)
		}
	}
}

// moved waits until QUIC clients have moved this many times: they move at random.
func moved(ctx context.Context, tracker *traffic.Tracker, want int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for tracker.Totals().Moved < want {
		if !sleep(ctx, pollPause) {
			return fmt.Errorf("QUIC clients moved %d times, want %d", tracker.Totals().Moved, want)
		}
	}
	return nil
}

// The directors are told that a backend is gone, but the harness knows that it is there: its
// connections break, and every one of them is reported with what is known of it.
func TestWrongBackendIsReported(t *testing.T) {
	o := small(t)
	o.binaries = build(t)
	o.flows, o.quics = 2*o.flows, 3*o.quics
	const robbed = 0
	o.meanwhile = func(ctx context.Context, h *harness) error {
		wrong := h.group.current().Clone()
		wrong.Backends[robbed].State = schedule.Absent
		return h.group.apply(ctx, wrong)
	}
	r, err := run(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.TCP.Broken < o.connections/10 || r.UDP.Broken == 0 || r.QUIC.Broken == 0 || r.Broken != r.TCP.Broken+r.UDP.Broken+r.QUIC.Broken || r.Misdirected < r.TCP.Broken/2 || r.BrokenBackendDied != 0 {
		t.Errorf("%d connections, %d flows and %d QUIC connections are reported as broken, %d packets as misdirected, %d as excused; of %d connections backend%d had about a third",
			r.TCP.Broken, r.UDP.Broken, r.QUIC.Broken, r.Misdirected, r.BrokenBackendDied, o.connections, robbed+1)
	}
	named := slices.IndexFunc(r.BrokenConnections, func(b broken) bool {
		return b.Protocol == "tcp" && b.Backend == "backend1" && b.Saw == "reset" && strings.HasPrefix(b.Director, "director") && len(b.Resets) > 0 && len(b.Places) == 2 &&
			b.Places[0].Owner == "backend1" && b.Places[1].Owner != "backend1"
	})
	if named < 0 {
		t.Errorf("no report names a connection of backend1, by which director it went, whose slot moved, and who reset it: %+v", r.BrokenConnections)
	}
	if faults := r.faults(); len(faults) != 2 {
		t.Errorf("the run's faults are %q, want broken connections and misdirected packets", faults)
	}
	var text strings.Builder
	if err := r.print(&text); err != nil || !strings.Contains(text.String(), `of "backend1" broke at`) {
		t.Errorf("printed (%v):\n%s", err, text.String())
	}
}

func TestUsageErrors(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--mode teleport", `unknown mode "teleport"; there are gue`},
		{"--duration 1s", "too short"},
		{"--retention 1ms", "too short"},
		{"--directors 1", "2 to"},
		{"--backends 1000", "4 to"},
		{"--connections 0", "1 to"},
		{"--store paper", `unknown store "paper"`},
		{"--syncookies 3", "0, 1 or 2"},
		{"--seeds 5-1", `"5-1" is empty`},
		{"--mode gue,teleport", `unknown mode "teleport"`},
		{"--loss 99", "50 percent"},
		{"--quic -1", "0 to 1000"},
		{"now", `unexpected argument "now"`},
	} {
		err := execute(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("chaos %s: %v, want %q", test.args, err, test.want)
		}
	}
}

func TestPlanIsTheSchedule(t *testing.T) {
	var out strings.Builder
	if err := execute(t.Context(), []string{"--plan", "--seed", "7"}, &out, os.Stderr); err != nil {
		t.Fatal(err)
	}
	events := schedule.Make(schedule.Options{Seed: 7, Duration: 2 * time.Minute, Directors: 4, Backends: 12, Members: storeMembers})
	if lines := strings.Count(out.String(), "\n"); lines != len(events) || !strings.Contains(out.String(), fmt.Sprint(events[0])) {
		t.Errorf("printed %d lines for %d events:\n%s", lines, len(events), out.String())
	}
}

// A director is not started again before it was stopped, however early its start would begin.
func TestNobodyStartsBeforeHeStops(t *testing.T) {
	for seed := range uint64(50) {
		o := schedule.Options{Seed: seed, Duration: 2 * time.Minute, Directors: 4, Backends: 12, Members: storeMembers}
		running := schedule.Begin(o).Announced
		for _, s := range steps(schedule.Make(o)) {
			switch {
			case s.prepare && running[s.Director]:
				t.Fatalf("seed %d: at %s it is director%d's turn to start, and it runs", seed, s.at, s.Director+1)
			case s.prepare:
				running[s.Director] = true
			case s.Kind == schedule.DirectorRemoved, s.Kind == schedule.DirectorKilled:
				running[s.Director] = false
			}
		}
	}
}
