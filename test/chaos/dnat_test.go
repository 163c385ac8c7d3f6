package main

import (
	"strings"
	"testing"

	"weir.io/weir/test/chaos/schedule"
)

// Only packets that the earlier rules left reach a backend's rule, so its probability is relative
// to those.
func TestRivalSpreadsByWeight(t *testing.T) {
	d := newDNAT(&topology{}, schedule.Group{Backends: []schedule.Backend{
		{State: schedule.Active, Weight: 50}, {State: schedule.Draining, Weight: 100}, {State: schedule.Active, Weight: 100},
		{State: schedule.Absent, Weight: 100}, {State: schedule.Dead, Weight: 50},
	}})
	var got []string
	for line := range strings.Lines(d.rules(0)) {
		if strings.Contains(line, "-p tcp") {
			_, rest, _ := strings.Cut(line, "--probability ")
			got = append(got, strings.TrimSpace(rest))
		}
	}
	want := []string{
		"0.25000000 -j DNAT --to-destination 10.1.0.51:8080",
		"0.66666667 -j DNAT --to-destination 10.1.0.53:8080",
		"1.00000000 -j DNAT --to-destination 10.1.0.55:8080",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("rules\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
