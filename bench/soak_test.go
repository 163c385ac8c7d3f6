package main

import (
	"math"
	"slices"
	"testing"

	"weir.io/weir/bench/record"
)

func TestGrowth(t *testing.T) {
	steady := slices.Repeat([]float64{100}, 40)
	warm := append([]float64{20, 40, 60, 80}, slices.Repeat([]float64{100}, 12)...)
	garbage := slices.Repeat([]float64{100, 130, 180, 110, 250}, 8)
	spike := slices.Clone(steady)
	spike[30] = 500
	var leak, saw []float64
	for i := range 40 {
		leak = append(leak, 1000+float64(i)*10+float64(i%3))
		saw = append(saw, 100+float64(i%5))
	}
	for _, test := range []struct {
		name      string
		values    []float64
		low, high float64
	}{
		{"steady", steady, 0, 0},
		{"that grow while they warm up", warm, 0, 0},
		{"with one that is off", spike, 0, 0},
		{"that leak", leak, 15, 25},
		{"that go up and down", saw, 0, 0},
		{"with garbage", garbage, 0, 0},
	} {
		got, err := growth(test.values)
		if err != nil || got < test.low || got > test.high {
			t.Errorf("values %s grow by %g %% (%v), want %g to %g", test.name, got, err, test.low, test.high)
		}
	}
	if got, err := growth(steady[:7]); err == nil || !math.IsNaN(got) {
		t.Errorf("of seven values growth is %g, want an error", got)
	}
}

func TestWorstGrowth(t *testing.T) {
	s := &record.Scenario{Name: "soak"}
	for i := range 20 {
		s.Add("director", nil, ownMemory, 1e6)
		s.Add("agent", nil, ownMemory, 1e6+float64(i)*1e5)
		s.Add("agent", nil, descriptors, 10)
	}
	if got, err := worstGrowth(ownMemory)(s); err != nil || got < 50 {
		t.Errorf("memory grows by %g (%v), want the agent's", got, err)
	}
	if got, err := worstGrowth(descriptors)(s); err != nil || got != 0 {
		t.Errorf("descriptors grow by %g (%v), want 0", got, err)
	}
	if _, err := worstGrowth(goroutines)(s); err == nil {
		t.Error("what was not measured has a growth")
	}
}
