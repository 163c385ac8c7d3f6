package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/store"
	"weir.io/weir/internal/tune"
	"weir.io/weir/lab/netlab"
)

// TestTune tunes a veth: its queues are the only thing of it that can be set without a sysfs of its namespace.
func TestTune(t *testing.T) {
	lab := netlab.ForTest(t)
	director, client := lab.Host("director"), lab.Host("client")
	link := lab.Link(director, client, netlab.LinkOptions{Queues: 4, A: []string{"10.0.0.1/24"}, B: []string{"10.0.0.2/24"}})
	dir := t.TempDir()
	sys, state := filepath.Join(dir, "sys"), filepath.Join(dir, "state")
	cpus := filepath.Join(sys, "devices/system/cpu")
	if err := errors.Join(os.MkdirAll(cpus, 0o755), os.WriteFile(filepath.Join(cpus, "online"), []byte("0-1\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	tunedHost = func() *tune.Host { return &tune.Host{Sys: sys, Proc: "/proc", NIC: tune.This().NIC} } // the machine's CPUs stay as they are
	t.Cleanup(func() { tunedHost = tune.This })
	file := filepath.Join(dir, "weir.yaml")
	text := "director: {interfaces: [eth0], store: {directory: " + state + "}}\nservices: []\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		var out, errs bytes.Buffer
		if err := director.Do(func() error {
			code = execute(t.Context(), append([]string{"tune"}, args...), &out, &errs)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return code, out.String(), errs.String()
	}
	is := func(wantCode int, wantOut, wantErr string, args ...string) {
		t.Helper()
		code, out, stderr := run(args...)
		if code != wantCode || out != wantOut || stderr != wantErr {
			t.Errorf("weir tune %s ends with %d:\n%s%s\nwant %d:\n%s%s", strings.Join(args, " "), code, out, stderr, wantCode, wantOut, wantErr)
		}
	}
	const note = "eth0 has other queues then: what serves and fills them is looked at again\n"
	is(0, "queues eth0: rx 4 tx 4 -> rx 2 tx 2  ethtool -L eth0 rx 2 tx 2\n"+note, "", "-c", file, "--dry-run")
	if _, err := os.Stat(state); err == nil {
		t.Error("--dry-run has made the directory of the state")
	}
	is(0, "queues eth0: rx 4 tx 4 -> rx 2 tx 2: set\n", "", "-c", file, "--apply")
	is(0, "nothing is to be changed\n", "", "-c", file, "--dry-run")
	is(0, "nothing is to be changed\n", "", "-c", file, "--apply")
	_, out, _ := run("-c", file, "--undo", "-o", "json")
	var undone tuned
	if err := json.Unmarshal([]byte(out), &undone); err != nil || len(undone.Changes) != 1 || undone.Changes[0] != (tune.Change{What: "queues eth0", Now: "rx 2 tx 2", Then: "rx 4 tx 4", Command: "ethtool -L eth0 rx 4 tx 4", Result: tune.Restored}) {
		t.Errorf("--undo says %s", out)
	}
	is(0, "nothing is recorded in "+state+"/tuned\n", "", "-c", file, "--undo")
	is(1, "queues eth0: rx 4 tx 4 -> rx 2 tx 2  ethtool -L eth0 rx 2 tx 2\n"+note, "weir: there is no interface eth7\n", "-c", file, "--dry-run", "--interface", "eth7", "--interface", "eth0")

	const one = "weir: one of --dry-run, --apply and --undo says what to do\n"
	is(2, "", one)
	is(2, "", one, "-c", file, "--apply", "--undo")
	is(2, "", "weir: --undo restores all that was changed, and takes neither --interface nor --threaded\n", "--undo", "--threaded")
	if err := os.WriteFile(file, []byte("director: {store: {directory: "+state+"}}\nservices: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	is(1, "", "weir: "+file+" has no director.interfaces: name one with --interface\n", "-c", file, "--apply")
	// The state's directory is no directory: without a record nothing is set.
	if err := errors.Join(os.RemoveAll(state), os.WriteFile(state, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := run("-c", file, "--apply", "--interface", "eth0"); code != 1 || strings.Contains(out, "set") || !strings.Contains(stderr, state) {
		t.Errorf("without a record it ends with %d: %s%s", code, out, stderr)
	}
	is(0, "queues eth0: rx 4 tx 4 -> rx 2 tx 2  ethtool -L eth0 rx 2 tx 2\n"+note, "", "-c", file, "--dry-run", "--interface", "eth0")

	// The kernel refuses a veth with a program fewer queues than its other end sends by.
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	link.A.ReceiveXDP()
	is(1, "queues eth0: rx 4 tx 4 -> rx 2 tx 2: refused: eth0: set the number of queues: invalid argument\n",
		"weir: not everything is set: see the lines with refused\n", "-c", file, "--apply", "--interface", "eth0")
	is(0, "nothing is recorded in "+state+"/tuned\n", "", "-c", file, "--undo")
	// One tune works at a time.
	unlock, err := store.Lock(state, tune.RecordName, "weir tune")
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range [][]string{{"--apply", "--interface", "eth0"}, {"--undo"}} {
		if code, out, stderr := run(append(what, "-c", file)...); code != 1 || out != "" || !strings.Contains(stderr, "another weir tune is at work, and holds "+state+"/tuned.lock") {
			t.Errorf("beside another one %s ends with %d: %s%s", what, code, out, stderr)
		}
	}
	unlock()
	// A configuration that cannot be read keeps nobody from undoing.
	if err := os.WriteFile(file, []byte("directors: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := run("-c", file, "--undo"); code != 1 || out != "" || !strings.Contains(stderr, "directors") || !strings.Contains(stderr, "--state") {
		t.Errorf("without a configuration undo ends with %d: %s%s", code, out, stderr)
	}
	is(0, "nothing is recorded in "+state+"/tuned\n", "", "-c", file, "--undo", "--state", state)
}
