package record

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// missingIsMissing makes NaN equal to NaN.
var missingIsMissing = cmp.Options{
	cmp.Comparer(func(a, b Number) bool { return a == b || !a.Finite() && !b.Finite() }),
	cmp.Comparer(func(a, b Values) bool {
		return slices.EqualFunc(a, b, func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })
	}),
}

func sample() *Record {
	r := &Record{
		Format: Format, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "abc1234",
		Machine:   Machine{CPU: "a processor", Cores: 2, Tools: map[string]string{"nft": "1.0.6"}},
		Settings:  Settings{Rounds: 2, Sample: time.Second},
		Scenarios: []Scenario{{Name: "flows", What: "time per packet", Notes: []string{"a note"}}},
		Checks:    []Check{{Name: "flat", Value: Number(math.NaN()), Relation: "<=", Target: 1.5}},
	}
	r.Scenarios[0].Add("l2dsr", Conditions{"flows": "1"}, Cost, 20)
	r.Scenarios[0].Add("l2dsr", Conditions{"flows": "1"}, Cost, math.Inf(1))
	return r
}

func TestWriteAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results", sample().FileName())
	if want := "2026-01-02-abc1234.json"; filepath.Base(path) != want {
		t.Errorf("the file is called %s, want %s", path, want)
	}
	for range 2 { // the second replaces the first
		if err := sample().Write(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := sample()
	want.Scenarios[0].Measurements[0].Rounds[1] = math.NaN() // null stands for NaN only
	if diff := cmp.Diff(want, got, missingIsMissing); diff != "" {
		t.Errorf("what was read is not what was written (-want +got):\n%s", diff)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory holds %v (%v), want the record alone", entries, err)
	}
}

func TestRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broken.json")
	var whole strings.Builder
	if err := sample().Encode(&whole); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "not a record of a benchmark"},
		{"cut off", whole.String()[:200], "not a record of a benchmark"},
		{"something else", `{"services": []}`, "it has no format"},
		{"a later format", `{"format": 99, "novelty": 1}`, "format 99; this program reads format 1"},
		{"an unknown key", `{"format": 1, "novelty": 1}`, `unknown field "novelty"`},
		{"an unknown key below", `{"format": 1, "scenarios": [{"name": "x", "novelty": 1}]}`, `unknown field "novelty"`},
		{"two objects", whole.String() + "{}", "not a record of a benchmark"},
		{"a word for a number", `{"format": 1, "scenarios": [{"name": "x", "measurements": [{"rounds": ["a"]}]}]}`, "rounds"},
		{"a null", `{"format": 1, "scenarios": [{"name": "x", "measurements": [null]}]}`, "scenario x: measurement 0 is null"},
		{"a scenario twice", `{"format": 1, "scenarios": [{"name": "x"}, {"name": "x"}]}`, `scenario "x"`},
		{"a measurement twice", `{"format": 1, "scenarios": [{"name": "x", "measurements": [
			{"subject": "s", "quantity": {"name": "q"}}, {"subject": "s", "quantity": {"name": "q"}}]}]}`, "is there twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(test.text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := Read(path)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("the error is %v; want it to name %s and say %q", err, path, test.want)
			}
		})
	}
	if _, err := Read(path + "-none"); err == nil || !strings.Contains(err.Error(), path+"-none") {
		t.Errorf("the error is %v; want it to name the file", err)
	}
}
