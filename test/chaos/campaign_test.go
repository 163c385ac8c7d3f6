package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestSeeds(t *testing.T) {
	for text, want := range map[string][]uint64{"": {9}, "4": {4}, "1-3": {1, 2, 3}, "7,1-2,7": {7, 1, 2, 7}} {
		if got, err := parseSeeds(text, 9); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("--seeds %q is %v (%v), want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"x": `"x" is no number`, "1,": `"" is no number`, "3-1": `"3-1" is empty`,
		"1-1001": "more than 1000", "1-1000,1-1": "more than 1000", "-5": `"-5" is no number`} {
		if _, err := parseSeeds(text, 9); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--seeds %q: %v, want %q", text, err, want)
		}
	}
}

// A command line is one run per seed and mode, each as if it were the only one.
func TestJobs(t *testing.T) {
	modes, err := findModes("gue,dnat")
	if err != nil {
		t.Fatal(err)
	}
	c := campaign{modes: modes, seeds: []uint64{9, 10}, options: options{shared: true, syncookies: cookiesBySeed}}
	type job struct {
		seed    uint64
		mode    string
		shared  bool
		cookies int
	}
	var got []job
	for _, o := range c.jobs() {
		got = append(got, job{o.Seed, o.mode.name, o.shared, o.syncookies})
	}
	if want := []job{{9, "gue", true, 1}, {9, "dnat", false, 1}, {10, "gue", true, 2}, {10, "dnat", false, 2}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the runs are %v, want %v", got, want)
	}
	c.syncookies = 0
	if o := c.jobs()[2]; o.syncookies != 0 {
		t.Errorf("--syncookies 0 is %d of seed 10", o.syncookies)
	}
}

// whole is the report of a run that was hard enough, and broke this many connections.
func whole(broken int) *report {
	return &report{Mode: "gue", Seed: 1, Duration: fullRun.Seconds(), Concurrent: leastConnections, Events: leastEvents, DoubleChanges: leastDoubles,
		OutlivedWindows: leastOutlived, Connections: 3000, Broken: broken, TCP: protocol{Connections: 2400, Broken: broken}, P99StallMS: 7}
}

// One run that breaks connections, or that cannot be done, fails the campaign; the others are still
// reported.
func TestVerdictOfSeveralRuns(t *testing.T) {
	modes, err := findModes("gue")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c := campaign{json: true, out: &out}
	var done []outcome
	for seed, r := range []*report{whole(0), whole(2), nil} {
		o := options{mode: modes[0]}
		o.Seed = uint64(seed)
		var err error
		if r == nil {
			err = errors.New("no lab")
		}
		done = append(done, c.judge(o, r, err))
	}
	if err := c.summarise(done); err != nil {
		t.Fatal(err)
	}
	var got struct{ Summary summary }
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	s := got.Summary
	if s.Runs != 3 || s.Passed != 1 || s.Broken != 2 || s.Connections != 6000 || s.P99StallMS != 7 || len(s.Results) != 3 || len(s.Results[0].Faults) != 0 {
		t.Errorf("the summary is %+v", s)
	}
	err = verdict(done)
	if err == nil || strings.Contains(err.Error(), "seed 0") || !strings.Contains(err.Error(), "seed 1, mode gue: 2 connections broke") || !strings.Contains(err.Error(), "seed 2, mode gue: no lab") {
		t.Errorf("the verdict is %v", err)
	}
	if err := verdict(done[:1]); err != nil {
		t.Errorf("a run that broke nothing fails: %v", err)
	}
}

// A comparison's table has a row for each run, and only a run that cannot be done
// makes it fail.
func TestTableOfAComparison(t *testing.T) {
	modes, err := findModes("gue,dnat")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c := campaign{compare: true, out: &out, modes: modes}
	done := []outcome{c.judge(options{mode: modes[0]}, whole(0), nil), c.judge(options{mode: modes[1]}, whole(5), nil)}
	if err := verdict(done); err != nil {
		t.Errorf("what a rival breaks fails the comparison: %v", err)
	}
	done = append(done, c.judge(options{mode: modes[1]}, nil, errors.New("no lab")))
	if err := c.summarise(done); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[2], "| `gue` | 2400 | 0 |") || !strings.HasPrefix(lines[3], "| `dnat` | 2400 | 5 |") || !strings.Contains(lines[4], "| - |") {
		t.Errorf("the table is\n%s", out.String())
	}
	if err := verdict(done); err == nil {
		t.Error("a run that could not be done does not fail the comparison")
	}
}

func TestOnlyBackendsNeedNoDoubleChanges(t *testing.T) {
	r := whole(0)
	r.DoubleChanges = 0
	if faults := r.faults(); len(faults) != 1 {
		t.Errorf("a long run without double changes: %q", faults)
	}
	r.OnlyBackends = true
	if faults := r.faults(); len(faults) != 0 {
		t.Errorf("one of backends only: %q", faults)
	}
}
