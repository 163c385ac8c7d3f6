package record

import (
	"math"
	"testing"
)

func TestWithUnit(t *testing.T) {
	for _, test := range []struct {
		value float64
		unit  string
		want  string
	}{
		{5_612_345, "packet/s", "5.61 Mpps"},
		{999.96, "packet/s", "1000 pps"},
		{1000, "packet/s", "1 kpps"},
		{0, "packet/s", "0 pps"},
		{76.14, "ns", "76.1 ns"},
		{1500, "ns", "1.50 µs"},
		{0.5, "ms", "500 µs"},
		{5, "ms", "5 ms"},
		{1, "ns", "1 ns"},
		{0.25, "ns", "0.250 ns"},
		{12, "s", "12 s"},
		{-3.2, "ns", "-3.20 ns"},
		{0.8123, "1", "0.812"},
		{0.8123, "", "0.812"},
		{0.0042, "1", "0.0042"},
		{12.345, "%", "12.3 %"},
		{65536, "B", "65.5 kB"},
		{88, "B", "88 B"},
		{123456.7, "request/s", "123 krequest/s"},
		{math.NaN(), "ns", "n/a"},
		{math.Inf(1), "1", "n/a"},
	} {
		if got := WithUnit(test.value, test.unit); got != test.want {
			t.Errorf("%g %s is written %q, want %q", test.value, test.unit, got, test.want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	missing := Number(math.NaN())
	all := []Check{{OK: true, Value: 1}, {OK: true, Value: 2}, {Value: 3}, {Value: -4, Note: "noise"}, {Value: missing, Note: "why"}, {Value: missing}}
	for i, want := range []Verdict{Met, Met, Missed, TooNoisy, NotMeasured, NotMeasured} {
		if got := all[i].Verdict(); got != want {
			t.Errorf("%+v is %q, want %q", all[i], got, want)
		}
	}
	for _, test := range []struct {
		checks []Check
		want   string
	}{
		{all, "2 of 6 are met, 1 is missed, 1 is too noisy to tell, 2 are not measured"},
		{all[:2], "2 of 2 are met"},
		{all[:1], "1 of 1 is met"},
		{all[2:3], "0 of 1 is met, 1 is missed"},
	} {
		if got := Tally(test.checks); got != test.want {
			t.Errorf("the tally is %q, want %q", got, test.want)
		}
	}
}

func TestReached(t *testing.T) {
	for _, test := range []struct {
		check Check
		want  string
	}{
		{Check{Value: 1.5049, Target: 1.5}, "1.5049"},
		{Check{Value: 1.4951, Target: 1.5, OK: true}, "1.50"},
		{Check{Value: 5.001, Target: 5, Unit: "ms"}, "5.001 ms"},
		{Check{Value: 500.2, Target: 500, Unit: "ms"}, "500.2 ms"},
		{Check{Value: 612, Target: 500, Unit: "ms"}, "612 ms"},
		{Check{Value: Number(math.NaN()), Target: 500}, "-"},
	} {
		if got := test.check.Reached(); got != test.want {
			t.Errorf("%v of %v is written %q, want %q", float64(test.check.Value), test.check.Target, got, test.want)
		}
	}
}
