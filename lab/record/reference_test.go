package record

import "testing"

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
