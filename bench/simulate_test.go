package main

import (
	"bytes"
	"strings"
	"testing"

	"weir.io/weir/lab/record"
)

func TestSimulate(t *testing.T) {
	var out, progress bytes.Buffer
	if code := execute(t.Context(), []string{"simulate", "--smoke", "--json", "--seed", "5", "weights", "routes"}, &out, &progress); code != 0 {
		t.Fatalf("exit status %d: %s", code, &progress)
	}
	r, err := record.Decode(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Scenarios) != 2 || r.Scenario("weights") == nil || r.Settings.Seed != 5 || !r.Settings.Smoke {
		t.Errorf("the record is %+v", r)
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
		"there is no directory":      {"--smoke", "--out", "nowhere/file", "routes"},
	} {
		var out bytes.Buffer
		if code := execute(t.Context(), append([]string{"simulate"}, args...), &out, &out); code != 1 || !strings.Contains(out.String(), says) {
			t.Errorf("simulate %v: exit status %d, and it says %s", args, code, &out)
		}
	}
}
