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
