package main

import (
	"math"
	"testing"

	"github.com/prometheus/procfs"
)

func TestIdleShare(t *testing.T) {
	before := procfs.CPUStat{User: 10, System: 10, Idle: 70, Iowait: 10, Guest: 5}
	after := procfs.CPUStat{User: 30, Nice: 10, System: 20, Idle: 85, Iowait: 15, SoftIRQ: 10, Steal: 30, Guest: 5}
	if got := idleShare(before, after); math.Abs(got-0.3) > 1e-9 {
		t.Errorf("%v of 100 seconds were idle, want 0.3", got)
	}
	if got := idleShare(before, before); got != 1 {
		t.Errorf("%v of no time was idle, want all", got)
	}
	if all, err := cores(); err != nil || all.User <= 0 || all.Idle <= 0 {
		t.Errorf("the cores of this machine have done %+v (%v)", all, err)
	}
}
