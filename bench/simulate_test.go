package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestSimulate(t *testing.T) {
	var out, progress bytes.Buffer
	if code := execute(t.Context(), []string{"simulate", "--smoke", "--seed", "5", "weights", "routes"}, &out, &progress); code != 0 {
		t.Fatalf("exit status %d: %s", code, &progress)
	}
	for _, want := range []string{"weights: p99", "routes: elsewhere"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q: %s", want, &out)
		}
	}
	if !strings.Contains(progress.String(), "events per second") {
		t.Errorf("it does not say how fast it was: %s", &progress)
	}
}

func TestSimulateRefuses(t *testing.T) {
	for says, args := range map[string][]string{
		`invalid argument "weather"`: {"weather"},
		"--rounds 0":                 {"--rounds", "0"},
		"--docs would put":           {"--docs", "--smoke"},
	} {
		var out bytes.Buffer
		if code := execute(t.Context(), append([]string{"simulate"}, args...), &out, &out); code != 1 || !strings.Contains(out.String(), says) {
			t.Errorf("simulate %v: exit status %d, and it says %s", args, code, &out)
		}
	}
}
