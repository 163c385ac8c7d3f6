package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/lab/record"
)

// pretend replaces the scenarios and the checks by made-up ones, which need neither
// root nor time, and makes the working directory an empty one.
func pretend(t *testing.T, made []scenario, wanted ...check) {
	t.Helper()
	t.Chdir(t.TempDir())
	oldScenarios, oldChecks := scenarios, checks
	scenarios, checks = made, wanted
	t.Cleanup(func() { scenarios, checks = oldScenarios, oldChecks })
}

// measuring is a scenario that takes one value in each round.
func measuring(name string, value float64) scenario {
	return scenario{name: name, what: "It says " + name + ".", run: func(ctx context.Context, s *session) error {
		return s.inRounds(ctx, func(context.Context) error {
			s.add("l2dsr", record.Conditions{"frame": "64"}, record.Cost, value)
			return nil
		})
	}}
}

// failing is a scenario that measures something and then breaks.
func failing(name string) scenario {
	s := measuring(name, 1)
	run := s.run
	s.run = func(ctx context.Context, s *session) error {
		return errors.Join(run(ctx, s), errors.New("a frame came to the wrong backend"))
	}
	return s
}

// atMost is a check of a scenario's measurement.
func atMost(name, scenario string, target float64) check {
	return check{name: name, relation: "<=", target: target, scenario: scenario, unit: "ns", quantity: record.Cost,
		value: reading("l2dsr", record.Conditions{"frame": "64"}, record.Cost)}
}

func run(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = execute(ctx, append([]string{"run"}, args...), &out, &err)
	return code, out.String(), err.String()
}

func decoded(t *testing.T, text string) *record.Record {
	t.Helper()
	r, err := record.Decode([]byte(text))
	if err != nil {
		t.Fatalf("stdout is not one record: %v\n%s", err, text)
	}
	return r
}

func TestRunPrintsOneObject(t *testing.T) {
	pretend(t, []scenario{measuring("a", 20), measuring("b", math.NaN()), measuring("c", 1)},
		atMost("a_ns", "a", 30), atMost("b_ns", "b", 30), atMost("c_ns", "c", 0))
	code, stdout, stderr := run(t, t.Context(), "--json", "--rounds", "3", "a", "b")
	if code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	r := decoded(t, stdout)
	if len(r.Scenarios) != 2 || len(r.Scenarios[0].Measurements[0].Rounds) != 3 || r.Settings.Rounds != 3 {
		t.Errorf("the record has %+v with %+v, want 3 rounds of a and b", r.Scenarios, r.Settings)
	}
	var plain struct {
		Checks []map[string]any `json:"checks"`
	}
	if err := json.Unmarshal([]byte(stdout), &plain); err != nil {
		t.Fatal(err)
	}
	if len(plain.Checks) != 2 {
		t.Fatalf("the checks are %v, want those of a and b", plain.Checks)
	}
	met, missed := plain.Checks[0], plain.Checks[1]
	if met["name"] != "a_ns" || met["value"] != 20.0 || met["target"] != 30.0 || met["ok"] != true {
		t.Errorf("the check of a is %v, want 20 of 30 to be ok", met)
	}
	if value, found := missed["value"]; !found || value != nil || missed["ok"] != false {
		t.Errorf("the check of b is %v, want null not to be ok", missed)
	}
	if note, found := missed["note"]; !found || note == "" {
		t.Errorf("the check of b is %v, without a note on why it has no value", missed)
	}
	if files, _ := filepath.Glob("*"); len(files) > 0 {
		t.Errorf("a run of some scenarios wrote %v", files)
	}
}

func TestRunWritesARecordAndADocument(t *testing.T) {
	pretend(t, []scenario{measuring("a", 20)}, atMost("a_ns", "a", 10))
	code, stdout, stderr := run(t, t.Context(), "--docs")
	if code != 0 || !strings.Contains(stdout, "MISSED  a_ns") {
		t.Fatalf("exit status %d, want 0 for a missed check that is shown\n%s%s", code, stdout, stderr)
	}
	files, err := filepath.Glob(resultsDirectory + "/*.json")
	if err != nil || len(files) != 1 {
		t.Fatalf("%s holds %v, want one record", resultsDirectory, files)
	}
	if _, err := record.Read(files[0]); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(document)
	if err != nil || !strings.Contains(string(text), files[0]) {
		t.Errorf("%s does not name its record (%v)", document, err)
	}
	before := string(text)
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"report", files[0]}, &out, &out); code != 0 {
		t.Fatalf("report: %s", &out)
	}
	if again, err := os.ReadFile(document); err != nil || string(again) != before {
		t.Errorf("the document of the same record differs (%v)", err)
	}
}

// The document is written from an incomplete record only if the user says so.
func TestReportOfAnIncompleteRun(t *testing.T) {
	pretend(t, []scenario{failing("a"), measuring("b", 2), measuring("c", 3)}, atMost("b_ns", "b", 10))
	if err := record.WriteFile(document, []byte("as it was")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, why string }{
		{"b", "it has no a, c"},
		{"a b c", "a ended with an error"},
		{"--smoke b", "a smoke run"},
	} {
		if code, _, stderr := run(t, t.Context(), append(strings.Fields(test.args), "--out", "x.json")...); stderr == "" {
			t.Fatalf("exit status %d", code)
		}
		var out bytes.Buffer
		if code := execute(t.Context(), []string{"report", "x.json"}, &out, &out); code != 1 || !strings.Contains(out.String(), test.why) {
			t.Errorf("report of %s: exit status %d, want 1 that says %q: %s", test.args, code, test.why, &out)
		}
		if text, err := os.ReadFile(document); err != nil || string(text) != "as it was" {
			t.Fatalf("report of %s left the document as %q (%v)", test.args, text, err)
		}
		out.Reset()
		if code := execute(t.Context(), []string{"report", "--out", "x.md", "x.json"}, &out, &out); code != 0 {
			t.Errorf("report of %s into another document: %s", test.args, &out)
		}
	}
}

// The document of some scenarios says how it is made.
func TestReportOfSomeScenarios(t *testing.T) {
	pretend(t, []scenario{measuring("a", 1), measuring("b", 2), measuring("c", 3)})
	if code, _, stderr := run(t, t.Context(), "b", "c", "--rounds", "2", "--out", "x.json"); code != 0 {
		t.Fatal(stderr)
	}
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"report", "--out", "x.md", "x.json"}, &out, &out); code != 0 {
		t.Fatal(&out)
	}
	want := "# Benchmarks: b and c\n\nGenerated from `x.json`; do not edit. The record and this document are made with\n\n" +
		"```sh\nbin/bench run b c --rounds 2 --out x.json\nbin/bench report --out x.md x.json\n```\n"
	if text, err := os.ReadFile("x.md"); err != nil || !strings.HasPrefix(string(text), want) {
		t.Errorf("the document begins otherwise (%v):\n%s\nwant\n%s", err, text, want)
	}
}

// A record has every round, so its document is judged by today's targets.
func TestReportJudgesAnew(t *testing.T) {
	pretend(t, []scenario{measuring("a", 20)}, atMost("a_ns", "a", 30))
	if code, _, stderr := run(t, t.Context(), "--out", "x.json"); code != 0 {
		t.Fatal(stderr)
	}
	checks[0].target = 10
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"report", "--out", "x.md", "x.json"}, &out, &out); code != 0 {
		t.Fatal(&out)
	}
	text, err := os.ReadFile("x.md")
	if err != nil || !strings.Contains(string(text), "| MISSED | [a_ns](#a-cost) |") {
		t.Errorf("20 of at most 10 ns is not missed (%v):\n%s", err, text)
	}
}

// Only a complete run that went well replaces an existing document.
func TestWhatReplacesNoDocument(t *testing.T) {
	for _, test := range []struct {
		args  string
		begun bool // whether something is measured before it is refused
	}{{"--docs --smoke", false}, {"--docs a", false}, {"--docs a --out a.json", false}, {"--docs", true}} {
		measured := false
		looked := measuring("b", 2)
		run := looked.run
		looked.run = func(ctx context.Context, s *session) error {
			measured = true
			return run(ctx, s)
		}
		pretend(t, []scenario{failing("a"), looked})
		if err := record.WriteFile(document, []byte("as it was")); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		code := execute(t.Context(), append([]string{"run"}, strings.Fields(test.args)...), &out, &out)
		if code != 1 || !strings.Contains(out.String(), document) || measured != test.begun {
			t.Errorf("run %s: exit status %d, measured %v: %s", test.args, code, measured, &out)
		}
		if text, err := os.ReadFile(document); err != nil || string(text) != "as it was" {
			t.Errorf("run %s left the document as %q (%v)", test.args, text, err)
		}
	}
}

func TestABrokenScenarioStopsNoOther(t *testing.T) {
	pretend(t, []scenario{failing("a"), measuring("b", 2)}, atMost("a_ns", "a", 10), atMost("b_ns", "b", 10))
	code, stdout, stderr := run(t, t.Context(), "--json")
	r := decoded(t, stdout)
	if code != 1 || !strings.Contains(stderr, "bench: a: a frame came to the wrong backend") {
		t.Errorf("exit status %d, want 1 and the error: %s", code, stderr)
	}
	if r.Scenario("a").Error == "" || len(r.Scenario("b").Measurements) != 1 {
		t.Errorf("the scenarios are %+v, want an error of a and what b measured", r.Scenarios)
	}
	if r.Checks[0].OK || !r.Checks[1].OK {
		t.Errorf("the checks are %v; that of the broken scenario must be missed", r.Checks)
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	slow := scenario{name: "slow", run: func(ctx context.Context, s *session) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}
	pretend(t, []scenario{measuring("a", 1), slow, measuring("never", 1)})
	code, stdout, stderr := run(t, ctx, "--json", "--docs")
	names := []string{}
	for _, s := range decoded(t, stdout).Scenarios {
		names = append(names, s.Name)
	}
	if code != 1 || !slices.Equal(names, []string{"a"}) || !strings.HasSuffix(stderr, "bench: interrupted during slow\n") {
		t.Errorf("exit status %d with %v, want 1 with what was done: %s", code, names, stderr)
	}
	if files, _ := filepath.Glob("*"); len(files) > 0 {
		t.Errorf("an interrupted run wrote %v", files)
	}
}

func TestMistakes(t *testing.T) {
	pretend(t, []scenario{measuring("a", 1), measuring("b", 1)})
	for _, test := range []struct{ args, want string }{
		{"run nope", `bench: invalid argument "nope" for "bench run"`},
		{"frobnicate", `bench: unknown command "frobnicate" for "bench"`},
		{"lst", "bench: unknown command \"lst\" for \"bench\"\n\nDid you mean this?\n\tlist\n"},
		{"run --rounds 0", "bench: --rounds 0: there must be one at least"},
		{"run --sample 10us", "bench: --sample 10µs is too short: less than the 30ms of a smoke run shows some subjects nothing"},
		{"run a --out here/there/a.json", "bench: --out here/there/a.json: there is no directory here/there"},
		{"run a --out .", "bench: --out .: is a directory; name a file in it"},
		{"report --out here/there/a.md none.json", "bench: --out here/there/a.md: there is no directory here/there"},
		{"run a --docs", "bench: --docs writes docs/results/benchmarks.md, which has every scenario: name none to run all of them, or write another document with bench report --out"},
		{"run --smoke --docs", "bench: --docs would put the figures of a smoke run, which mean nothing, into docs/results/benchmarks.md"},
		{"run --speed", "bench: unknown flag: --speed"},
		{"compare a.json", "bench: requires at least 2 arg(s), only received 1"},
		{"report none.json", "bench: read a record: open none.json: no such file or directory"},
	} {
		var stdout, stderr bytes.Buffer
		code := execute(t.Context(), strings.Fields(test.args), &stdout, &stderr)
		if code != 1 || stdout.Len() > 0 || stderr.String() != test.want+"\n" {
			t.Errorf("%s: exit status %d, stdout %q, stderr %q; want 1, nothing and %q", test.args, code, &stdout, &stderr, test.want)
		}
	}
}

// The user is told how much is done, and how long the rest will take.
func TestProgress(t *testing.T) {
	pretend(t, []scenario{measuring("a", 1)})
	_, _, stderr := run(t, t.Context(), "--rounds", "3")
	for _, want := range []string{`^1 scenario, 3 rounds, 250ms of each`, `round 1 of 3, about \d+ s to go\n`, `round 2 of 3, about \d+ s to go\n`, `round 3 of 3\n`} {
		if !regexp.MustCompile(want).MatchString(stderr) {
			t.Errorf("it does not say %q: %s", want, stderr)
		}
	}
}
