package main

import (
	"testing"
	"time"

	"weir.io/weir/lab/version"
	"weir.io/weir/test/chaos/schedule"
)

// No connection breaks while backends drain, return and get other weights, and directors begin anew, when NICs
// steer flows and something else changes their rules at random.
func TestSteeredConnectionsGoOn(t *testing.T) {
	o := small(t)
	t.Chdir("../..")
	var err error
	if o.binaries[schedule.This], err = version.WithNICs(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o.mode, err = findMode("l2dsr"); err != nil {
		t.Fatal(err)
	}
	o.progress = t.Output()
	o.connections = 600                                     // enough packets for some flows to have rules all the time
	o.shared, o.steer, o.patience = true, true, time.Minute // a busy machine is slow, and that breaks nothing
	backend := func(i int, kind schedule.Kind, state schedule.State) func(*schedule.Event) {
		return func(e *schedule.Event) { e.Kind, e.Backends, e.After.Backends[i].State = kind, []int{i}, state }
	}
	events := script(o,
		backend(0, schedule.BackendsDrained, schedule.Draining),
		backend(1, schedule.BackendsDrained, schedule.Draining),
		backend(0, schedule.BackendsReturned, schedule.Active),
		director(schedule.DirectorRestarted, 0),
		func(e *schedule.Event) {
			e.Kind, e.Backends, e.After.Backends[2].Weight = schedule.WeightsChanged, []int{2}, 200
		},
		backend(1, schedule.BackendsReturned, schedule.Active),
		func(e *schedule.Event) { e.Kind, e.After.Queues = schedule.QueuesChanged, 3 },
		director(schedule.DirectorCrashed, 1),
	)
	r, err := run(t.Context(), o, events)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d TCP connections, %d events, %+v, %.1f s", r.TCP.Connections, r.Events, *r.Steered, r.Duration)
	if r.Broken != 0 || r.Misdirected != 0 {
		t.Errorf("%d connections broke and %d packets were misdirected: %+v %+v", r.Broken, r.Misdirected, r.BrokenConnections, r.MisdirectedPackets)
	}
}
