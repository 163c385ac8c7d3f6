package main

import "testing"

func TestCores(t *testing.T) {
	before, err := parseCores("cpu  10 0 10 70 10 0 0 0 5 0")
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseCores("cpu  30 10 20 85 15 0 10 30 5 0")
	if err != nil {
		t.Fatal(err)
	}
	if got := after.idleSince(before); got != 0.3 {
		t.Errorf("%v of 100 ticks were idle, want 0.3", got)
	}
	if got := before.idleSince(before); got != 1 {
		t.Errorf("%v of no time was idle, want all", got)
	}
	for _, line := range []string{"", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2", "cpu a b c d e f g h"} {
		if _, err := parseCores(line); err == nil {
			t.Errorf("%q was read", line)
		}
	}
}
