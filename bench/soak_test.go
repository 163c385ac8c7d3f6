package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"weir.io/weir/lab/record"
)

// samples is how many a soak of two hours takes, with five changes, a minute each, between two.
const samples = 24

// series has a value for each sample.
func series(of func(i int) float64) []float64 {
	var list []float64
	for i := range samples {
		list = append(list, of(i))
	}
	return list
}

func TestGrowth(t *testing.T) {
	steady := slices.Repeat([]float64{100}, samples)
	spike := slices.Clone(steady)
	spike[18] = 500
	jitter := []float64{0, 1, -1, 0, 0, 1, 0, -1, 1, 0, 0}
	for _, test := range []struct {
		name      string
		values    []float64
		step      float64
		low, high float64
	}{
		{"steady", steady, 0, 0, 0},
		{"that grow while they warm up", append([]float64{20, 40, 60}, steady[3:]...), 0, 0, 0},
		{"with one that is off", spike, 0, 0, 0},
		{"that fall", series(func(i int) float64 { return 100 - float64(i) }), 0, 0, 0},
		{"that go up and down", series(func(i int) float64 { return 100 + float64(i%5) }), 0, 0, 0},
		{"with garbage", series(func(i int) float64 { return []float64{100, 130, 180, 110, 250}[i%5] }), 0, 0, 0},

		// Goroutines of a director as a soak of two hours counted them.
		{"of a soak", []float64{60, 61, 59, 59, 60, 61, 60, 60, 59, 60, 61, 60, 60, 59, 60, 61, 60, 60, 60, 61, 60, 61, 60, 60}, whole, 0, 0},
		{"that change by one", series(func(i int) float64 { return 60 + jitter[i%len(jitter)] }), whole, 0, 0},
		{"that are one more in the later half", series(func(i int) float64 { return 59 + float64(i/12) }), whole, 0, 0},
		{"that are one more in the last quarter", series(func(i int) float64 { return 59 + float64(i/18) }), whole, 0, 0},

		{"with one more every 20 minutes", series(func(i int) float64 { return 60 + float64(i/4) }), whole, 8, 10},
		{"with one more every 20 minutes, that change by one", series(func(i int) float64 { return 60 + float64(i/4) + jitter[i%len(jitter)] }), whole, 6, 12},
		{"with one more every 40 minutes", series(func(i int) float64 { return 60 + float64(i/8) }), whole, 2, 4},
		{"with one more every 5 minutes of the last 30", series(func(i int) float64 { return 60 + float64(max(0, i-17)) }), whole, 8, 14},
		{"that are three more from the 45th minute on", series(func(i int) float64 { return 60 + float64(min(i/9, 1))*3 }), whole, 4, 6},
		{"with a page more in each sample", series(func(i int) float64 { return 7e6 + float64(i)*4096 }), 0, 1.2, 1.5},
		{"that leak beside garbage", series(func(i int) float64 { return 1000 + float64(i)*20 + float64(i%3)*50 }), 0, 35, 45},
	} {
		got, err := growth(test.values, test.step)
		if err != nil || got < test.low || got > test.high {
			t.Errorf("values %s grow by %g %% (%v), want %g to %g", test.name, got, err, test.low, test.high)
		}
	}
}

// Values without a trend stay below the targets of a soak, whatever chance does.
func TestNoGrowthByChance(t *testing.T) {
	const soaks = 1000
	random := rand.New(rand.NewPCG(5, 24))
	counts, sizes := 0, 0
	for range soaks {
		if got, err := growth(series(func(int) float64 { return float64(59 + random.IntN(3)) }), whole); err != nil || got > 1 {
			counts++
		}
		if got, err := growth(series(func(int) float64 { return 4e6 * (1 + 0.08*random.NormFloat64()) }), 0); err != nil || got > 20 {
			sizes++
		}
	}
	if counts > soaks/1000 || sizes > soaks/100 {
		t.Errorf("%d of %d counts and %d sizes have a growth that is not there", counts, soaks, sizes)
	}
}

func TestGrowthOfWhatHasNone(t *testing.T) {
	if got, err := growth(slices.Repeat([]float64{60}, fewestSamples-1), whole); err == nil || !math.IsNaN(got) {
		t.Errorf("of too few values growth is %g, want an error", got)
	}
	if got, err := growth(slices.Repeat([]float64{0}, samples), whole); err != nil || got != 0 {
		t.Errorf("nothing grows by %g (%v), want 0", got, err)
	}
	if got, err := growth(series(func(i int) float64 { return float64(max(0, i-13)) }), whole); err == nil || !math.IsNaN(got) {
		t.Errorf("what was nothing for most of the time grows by %g %%, want an error", got)
	}
}

func TestWorstGrowth(t *testing.T) {
	s := &record.Scenario{Name: "soak"}
	for i := range samples {
		s.Add("director", nil, ownMemory, 1e6)
		s.Add("agent", nil, ownMemory, 1e6+float64(i)*1e5)
		s.Add("agent", nil, descriptors, 10)
		s.Add("agent", nil, goroutines, float64(10+i/12))
		s.Add("group", nil, ringMemory, float64(100+i/12))
	}
	if got, err := worstGrowth(ownMemory)(s); err != nil || got < 50 {
		t.Errorf("memory grows by %g (%v), want the agent's", got, err)
	}
	if got, err := worstGrowth(descriptors, goroutines)(s); err != nil || got != 0 {
		t.Errorf("one goroutine more is a growth by %g (%v), want 0", got, err)
	}
	if got, err := worstGrowth(descriptors, ringMemory)(s); err != nil || got < 0.9 {
		t.Errorf("one byte more of a hundred is a growth by %g (%v), want 1 %%", got, err)
	}
	if _, err := worstGrowth(pinned)(s); err == nil {
		t.Error("what was not measured has a growth")
	}
}
