package record

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
)

func TestWhatIsMissingIsNull(t *testing.T) {
	in := struct {
		Rounds Values
		Value  Number
		Other  Number
	}{Values{1, math.NaN(), math.Inf(1), 2.5}, Number(math.NaN()), 3}
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"Rounds":[1,null,null,2.5],"Value":null,"Other":3}`; string(data) != want {
		t.Errorf("wrote %s, want %s", data, want)
	}
	out := in
	out.Value = 7
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Rounds) != 4 || out.Rounds[0] != 1 || !math.IsNaN(out.Rounds[1]) || out.Rounds[3] != 2.5 {
		t.Errorf("read rounds %v back", out.Rounds)
	}
	if out.Value.Finite() || out.Other != 3 {
		t.Errorf("read %v and %v back, want NaN and 3", out.Value, out.Other)
	}
}

func TestNotNumbers(t *testing.T) {
	for _, text := range []string{`["1"]`, `{}`, `1`} {
		var v Values
		if err := json.Unmarshal([]byte(text), &v); err == nil {
			t.Errorf("%s was read as %v", text, v)
		}
	}
}

func TestQuantile(t *testing.T) {
	values := []float64{4, 1, 3, 2}
	for part, want := range map[float64]float64{0: 1, 0.25: 1.75, 0.5: 2.5, 1: 4} {
		if got := Quantile(values, part); got != want {
			t.Errorf("quantile %g of %v is %g, want %g", part, values, got, want)
		}
	}
	if !slices.Equal(values, []float64{4, 1, 3, 2}) {
		t.Errorf("the values were sorted in place: %v", values)
	}
	for _, none := range [][]float64{nil, {1, math.NaN(), 2}} {
		if got := Median(none); !math.IsNaN(got) {
			t.Errorf("the median of %v is %g, want NaN", none, got)
		}
	}
}

func TestRank(t *testing.T) {
	times := make([]int64, 200)
	for i := range times {
		times[i] = int64(200 - i)
	}
	if p50, p99 := Rank(times, 50), Rank(times, 99); p50 != 100 || p99 != 198 {
		t.Errorf("p50 %d, p99 %d of 1 to 200, want 100 and 198", p50, p99)
	}
	if got := Rank([]int64{7}, 99); got != 7 {
		t.Errorf("p99 of 7 alone is %d", got)
	}
}

func TestRatiosAreRoundByRound(t *testing.T) {
	of := &Measurement{Rounds: Values{10, 20, 30, 40}}
	to := &Measurement{Rounds: Values{20, 40, 0}}
	if got := Ratios(of, to); !slices.Equal(got, []float64{0.5, 0.5}) {
		t.Errorf("the ratios are %v, want those of the first two rounds", got)
	}
	if got := Ratios(of, nil); got != nil {
		t.Errorf("the ratios to nothing are %v", got)
	}
}

func TestReference(t *testing.T) {
	var s Scenario
	add := func(subject string, at Conditions, quantity Quantity) *Measurement {
		s.Add(subject, at, quantity, 1)
		return s.Find(subject, at, quantity.Name)
	}
	small := add("redirect", Conditions{"frame": "64"}, Throughput)
	same := add("redirect", Conditions{"frame": "64", "flows": "1"}, Throughput)
	add("redirect", Conditions{"frame": "128"}, Throughput)
	swap := add("swap", Conditions{"frame": "1500"}, Throughput)
	for _, test := range []struct {
		name string
		of   *Measurement
		want *Measurement
	}{
		{"the same conditions", add("nat", Conditions{"frame": "64", "flows": "1"}, Throughput), same},
		{"more conditions", add("nat", Conditions{"frame": "64", "flows": "9"}, Throughput), small},
		{"the next reference", add("nat", Conditions{"frame": "1500", "flows": "1"}, Throughput), swap},
		{"other conditions", add("nat", Conditions{"frame": "9000"}, Throughput), nil},
		{"another quantity", add("nat", Conditions{"frame": "64"}, Cost), nil},
		{"the reference itself", same, nil},
	} {
		if got := s.Reference(test.of); got != test.want {
			t.Errorf("%s: compared with %v, want %v", test.name, got, test.want)
		}
	}
}
