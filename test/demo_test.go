package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// weir-demo shows every mode and family without a failure, and what traffic notices of the
// losses, and leaves nothing.
func TestDemo(t *testing.T) {
	cmd := exec.Command(buildDemo(t), "--weir", weir, "--duration", "6s", "--json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("weir-demo: %v\n%s", err, &stderr)
	}
	var report struct {
		Requests, Failed int
		Rows             []struct {
			Mode, Family     string
			Requests, Failed int
			Crossed          uint64 `json:"replies-through-director"`
		}
		Router string
		Losses []struct {
			Event    string
			Followed string `json:"router-followed-after"`
			Flows    int    `json:"new-flows"`
			Lost     int    `json:"new-flows-lost"`
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatalf("read the result: %v\n%s", err, &stdout)
	}
	if report.Requests == 0 || report.Failed > 0 || len(report.Rows) != len(ways) {
		t.Errorf("of %d requests %d failed, in %d rows; want some, 0 and %d:\n%s",
			report.Requests, report.Failed, len(report.Rows), len(ways), &stdout)
	}
	seen := map[string]bool{}
	for _, row := range report.Rows {
		seen[row.Mode+" "+row.Family] = true
		crosses := strings.HasPrefix(row.Mode, "nat")
		if row.Requests == 0 || (row.Crossed > 0) != crosses {
			t.Errorf("%s, %s: %d requests, %d replies through a director, want some: %v",
				row.Mode, row.Family, row.Requests, row.Crossed, crosses)
		}
	}
	if len(seen) != len(ways) {
		t.Errorf("the rows are about %v", seen)
	}
	events := []struct {
		begins          string
		followed, loses bool
	}{{"director2 lost", true, true}, {"director2 started", true, false}, {"weir run on director1 killed", false, false}, {"backend3 lost", false, true}}
	if report.Router != "FRR" || len(report.Losses) != len(events) {
		t.Fatalf("with router %q there are %d losses, want FRR and %d:\n%s", report.Router, len(report.Losses), len(events), &stdout)
	}
	for i, want := range events {
		got := report.Losses[i]
		if !strings.HasPrefix(got.Event, want.begins) || (got.Followed != "") != want.followed || got.Flows == 0 || want.loses && got.Lost == 0 {
			t.Errorf("loss %d is %+v, want %+v", i+1, got, want)
		}
	}
	wantNothingLeft(t, cmd.Process.Pid)
}

// buildDemo builds the program and returns its path.
func buildDemo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(built, "weir-demo")
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/weir-demo").CombinedOutput(); err != nil {
		t.Fatalf("build weir-demo: %v\n%s", err, out)
	}
	return path
}

// A wrong command line is told from a demo in which something failed, and from a missing weir.
func TestDemoComplains(t *testing.T) {
	demo := buildDemo(t)
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--duration", "1s"}, 2, "--duration 1s is too short"},
		{[]string{"now"}, 2, "takes no arguments"},
		{[]string{"--wait"}, 2, "-wait"},
		{[]string{"--weir", "/nowhere/weir"}, 1, "/nowhere/weir"},
		{[]string{"--help"}, 0, "Usage: weir-demo"},
	} {
		cmd := exec.Command(demo, test.args...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.says) {
			t.Errorf("weir-demo %q ends with %d and says %q; %d and %q are expected", test.args, code, out, test.code, test.says)
		}
	}
}

// An interrupt ends the demo early, with a report of what it saw; one during the hold ends the
// hold.
func TestDemoIsInterrupted(t *testing.T) {
	cmd := exec.Command(buildDemo(t), "--weir", weir, "--duration", "60s", "--hold")
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var progress strings.Builder
	buffer := make([]byte, 4096)
	interrupted := false
	for {
		n, err := stderr.Read(buffer)
		progress.Write(buffer[:n])
		if !interrupted && strings.Contains(progress.String(), "2 s: ") {
			interrupted = true
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the demo ended with %v:\n%s", err, &progress)
	}
	if !strings.Contains(stdout.String(), "l2dsr") {
		t.Errorf("there is no table:\n%s", &stdout)
	}
	wantNothingLeft(t, cmd.Process.Pid)
}

// wantNothingLeft checks that no namespaces, files, mounts and processes of that process's lab are
// left.
func wantNothingLeft(t *testing.T, pid int) {
	t.Helper()
	name := fmt.Sprintf("weir-%d", pid)
	for _, pattern := range []string{"/run/netns/" + name + "*", "/run/weir-lab/" + name + "*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("still there: %v", left)
		}
	}
	if mounts, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(mounts), name+"/") {
		t.Errorf("something of %s is still mounted (%v)", name, err)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		if text, err := os.ReadFile(line); err == nil && strings.Contains(string(text), name+"/") {
			t.Errorf("still runs: %s", strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
}
