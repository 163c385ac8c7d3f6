package main

import (
	"io"
	"strings"
	"testing"
)

// A run in a guest must not pass by accident: each of these lost something.
func TestVerdict(t *testing.T) {
	tests := []binary{{name: "one", dir: "./one"}, {name: "two", dir: "./two"}}
	for _, test := range []struct {
		name, output, want string // want: the error's text; empty: it passes
	}{
		{name: "both passed",
			output: "--- PASS: TestA (0.00s)\nguest: exit 00-one 0\n    --- PASS: TestB/x (0.00s)\nguest: exit 01-two 0\nguest: done"},
		{name: "the second never ran",
			output: "--- PASS: TestA (0.00s)\nguest: exit 00-one 0\nguest: done",
			want:   "./two did not run to its end"},
		{name: "the second had no test",
			output: "--- PASS: TestA (0.00s)\nguest: exit 00-one 0\nguest: exit 01-two 0\nguest: done",
			want:   "./two passed no test"},
		{name: "the second skipped its only test",
			output: "--- PASS: TestA (0.00s)\nguest: exit 00-one 0\n--- SKIP: TestB (0.00s)\nguest: exit 01-two 0\nguest: done",
			want:   "./two passed no test"},
		{name: "a test failed",
			output: "--- FAIL: TestA (0.00s)\nguest: exit 00-one 1\n--- PASS: TestB (0.00s)\nguest: exit 01-two 0\nguest: done",
			want:   "./one ended with status 1"},
		{name: "the guest stopped",
			output: "--- PASS: TestA (0.00s)\nguest: exit 00-one 0\n--- PASS: TestB (0.00s)\nguest: exit 01-two 0",
			want:   "the guest stopped before its tests ended"},
	} {
		r := newReport(io.Discard, "6.1")
		for line := range strings.Lines(test.output) {
			r.line(strings.TrimSpace(line))
		}
		err := r.verdict(tests)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: error %q, want none", test.name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	older, newer := "linux-image-6.12.9+deb12-cloud-amd64-unsigned", "linux-image-6.12.117+deb12-cloud-amd64-unsigned"
	if compareVersions(older, newer) >= 0 || compareVersions(newer, older) <= 0 || compareVersions(newer, newer) != 0 {
		t.Errorf("%s is not found newer than %s", newer, older)
	}
}
