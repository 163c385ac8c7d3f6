package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"weir.io/weir/test/chaos/schedule"
	"weir.io/weir/test/chaos/traffic"
)

// Handed over connections go on whatever happens to directors, agents and their backend. One
// backend is drained and then removed, which ends only connections through directors. Nothing is
// excused, because no backend's host dies.
func TestHandedOverConnectionsGoOn(t *testing.T) {
	o := small(t)
	o.binaries = build(t)
	var err error
	if o.mode, err = findMode("redirect"); err != nil {
		t.Fatal(err)
	}
	o.progress = t.Output()
	o.shared, o.patience = true, time.Minute // a busy machine is slow, and that breaks nothing
	o.Backends = 6
	const leaves, comes = 0, 5
	backend := func(i int, kind schedule.Kind, state schedule.State) func(*schedule.Event) {
		return func(e *schedule.Event) { e.Kind, e.Backends, e.After.Backends[i].State = kind, []int{i}, state }
	}
	agent := func(i int) func(*schedule.Event) {
		return func(e *schedule.Event) {
			e.Kind, e.Backends, e.After.AgentVersions[i] = schedule.AgentUpgraded, []int{i}, schedule.SameABI
		}
	}
	events := script(o,
		backend(leaves, schedule.BackendsDrained, schedule.Draining),
		director(schedule.DirectorCrashed, 0),
		agent(leaves),
		backend(comes, schedule.BackendsAdded, schedule.Active),
		backend(leaves, schedule.BackendsRemoved, schedule.Absent),
		director(schedule.DirectorKilled, 1),
		agent(1),
		director(schedule.DirectorAdded, 2),
		func(e *schedule.Event) {
			e.Kind, e.Backends, e.After.Backends[1].Weight = schedule.WeightsChanged, []int{1}, 200
		},
		director(schedule.DirectorRemoved, 0),
	)
	o.meanwhile = func(ctx context.Context, h *harness) error { return removed(ctx, h, leaves) }
	r, err := run(t.Context(), o, events)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d TCP connections, %+v of them handed over, %d events, %d exchanges, %.1f s", r.TCP.Connections, *r.Redirected, r.Events, r.Exchanges, r.Duration)
	if r.Broken != 0 || r.Misdirected != 0 {
		t.Errorf("%d connections broke and %d packets were misdirected: %+v %+v", r.Broken, r.Misdirected, r.BrokenConnections, r.MisdirectedPackets)
	}
	if r.Redirected.Connections < o.connections/2 {
		t.Errorf("%d of %d TCP connections were handed over, want at least half of the %d that were open at first", r.Redirected.Connections, r.TCP.Connections, o.connections)
	}
	// Of the connections at first, at least a fifth belong to this one of five backends.
	if r.Redirected.OutlivedRemoval < o.connections/10 {
		t.Errorf("%d connections went on when backend%d was none any more, want at least %d", r.Redirected.OutlivedRemoval, leaves+1, o.connections/10)
	}
	if r.Events != len(events) {
		t.Errorf("%d of %d events happened", r.Events, len(events))
	}
}

// removed waits until a backend has been removed, and then for some traffic.
func removed(ctx context.Context, h *harness, backend int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for h.group.current().Backends[backend].State != schedule.Absent {
		if !sleep(ctx, pollPause) {
			return fmt.Errorf("backend%d was not removed", backend+1)
		}
	}
	return exchanged(ctx, h.tracker, 3*h.connections)
}

// exchanged waits for this many more exchanges.
func exchanged(ctx context.Context, tracker *traffic.Tracker, want int) error {
	want += tracker.Totals().Exchanges
	for tracker.Totals().Exchanges < want {
		if !sleep(ctx, pollPause) {
			return fmt.Errorf("%d exchanges, want %d", tracker.Totals().Exchanges, want)
		}
	}
	return nil
}
