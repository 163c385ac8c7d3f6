package main

import (
	"math"
	"testing"

	"weir.io/weir/lab/record"
)

// sweptScenario is a sweep in two rounds in which weir exports the load, and the product is its
// square; from some step on it loses packets.
func sweptScenario(lossy int) *record.Scenario {
	s := &record.Scenario{}
	for round := range 2 {
		for n := range sweepSteps + 1 {
			lost := 0.0
			if n >= lossy || n == 3 && round == 0 { // another program took the CPU once
				lost = 0.2
			}
			load := float64(n) / sweepDivisor
			s.Add(exported, loadOf(n), offeredRate, load*1e6)
			s.Add(exported, loadOf(n), lostShare, lost)
			s.Add(exported, loadOf(n), inUse, load)
			s.Add("busy", loadOf(n), inUse, 1)
			s.Add("product", loadOf(n), inUse, load*load)
		}
	}
	conclude(s)
	return s
}

func TestConclude(t *testing.T) {
	s, nothing := sweptScenario(10), record.Conditions{}
	for _, test := range []struct {
		subject  string
		quantity record.Quantity
		want     float64
	}{
		{exported, firstLoss, 1e6},
		{exported, atFirstLoss, 1},
		{exported, linearity, 1},
		{"product", atFirstLoss, 1},
	} {
		if got := found(s, test.subject, nothing, test.quantity); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s of %s is %v, want %v", test.quantity.Name, test.subject, got, test.want)
		}
	}
	if got := found(s, "product", nothing, linearity); got > 0.95 || got < 0.9 {
		t.Errorf("R² of a square is %v", got)
	}
}

// Without loss it is not known when a CPU is full, so the checks are missed.
func TestConcludeWithoutLoss(t *testing.T) {
	s := sweptScenario(sweepSteps + 1)
	s.Name = "utilization"
	for _, c := range judge(&record.Record{Scenarios: []record.Scenario{*s}}) {
		if c.OK != (c.Name == "utilization_idle") {
			t.Errorf("%v", c)
		}
	}
}
