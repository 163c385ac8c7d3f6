package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// log returns the status of the log of the director's only service.
func (h *host) log(t *testing.T) model.LogStatus {
	t.Helper()
	services, err := api.NewClient(h.socket).Services(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(services) != 1 {
		t.Fatalf("the director has %d services", len(services))
	}
	return services[0].Log
}

// two is a service whose second backend has a weight.
func (h *host) two(t *testing.T, weight string) {
	t.Helper()
	text := onEth0 + `
services:
- name: web
  vip: 203.0.113.1
  protocol: tcp
  port: 80
  mode: l2dsr
  drain: 1h
  backends: [{address: 10.0.0.2}, {address: 10.0.0.3, weight: ` + weight + "}]\n"
	if err := os.WriteFile(h.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The logs of the services in a director's file outlive kill -9, changes of the file while no
// director runs, and, except for their content, a damaged state file.
func TestLogsOutliveTheDirector(t *testing.T) {
	h := newHost(t)
	h.two(t, "100")
	p := h.start("director runs")
	h.two(t, "50")
	p.wait("have two generations", func() bool { return h.log(t).Generations == 2 })
	before := h.log(t)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	if before.Shared == 0 || before.Moved != before.Shared {
		t.Errorf("the change of weight moved %d slots, and %d are shared", before.Moved, before.Shared)
	}
	before.Moved, before.MovedTotal = 0, 0 // each process counts its own
	p = h.start("director runs")
	if got := h.log(t); got != before {
		t.Errorf("after kill -9 the log is %+v, it was %+v", got, before)
	}
	p.stop()
	h.two(t, "20")
	p = h.start("director runs")
	if got := h.log(t); got.Generations != 3 || !got.Oldest.Equal(before.Oldest) {
		t.Errorf("after a change while no director ran the log is %+v; before, %+v", got, before)
	}
	p.stop()
	program := h.program()
	file := filepath.Join(h.Dir(), "state", "file.json")
	if err := os.Truncate(file, 100); err != nil {
		t.Fatal(err)
	}
	p = h.start("director runs")
	p.waitLog("the logs of the file's services begin again")
	if log := p.stderr.String(); !strings.Contains(log, file+":2:") || !strings.Contains(log, file+".corrupt-1") {
		t.Errorf("the damaged file and its place are not named:\n%s", log)
	}
	if got := h.log(t); got.Generations != 1 {
		t.Errorf("after the loss of the state the log is %+v", got)
	}
	if program == 0 || h.program() == 0 {
		t.Error("forwarding does not go on")
	}
	p.stop()
}

func TestStateDirectoryThatCannotBeWritten(t *testing.T) {
	h := newHost(t)
	h.configure("director: {interfaces: [eth0], store: {directory: /proc/weir}}", "mine")
	if got := h.failsToRun(); !strings.Contains(got, "make the store's directory: mkdir /proc/weir") {
		t.Errorf("the error is %s", got)
	}
	h.configure("director: {interfaces: [eth0], store: {directory: "+filepath.Join(h.Dir(), "state")+"}}", "mine")
	p := h.start("director runs")
	h.socket += "2"
	if got := h.failsToRun(); !strings.Contains(got, "another process has the store open") || !strings.Contains(got, "director.store.directory") {
		t.Errorf("the error is %s", got)
	}
	p.stop()
}

// Files of the state that are damaged, of another version or cannot be read are shown, with what each
// one loses and where it is now, also after a restart, until they are removed. They keep no director
// from starting.
func TestDamagedStateIsShown(t *testing.T) {
	h := newHost(t)
	state := h.beside("state")
	head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + state + "}}"
	h.configure(head, "web")
	h.start("director runs").kill()
	write := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	files := map[string]func(path string) error{ // by its second name
		"file.json.unread-1":   func(path string) error { return os.MkdirAll(filepath.Join(path, "somebody's"), 0o700) },
		"running.corrupt-1":    write("{\"half"),
		"overrides.unread-1":   func(path string) error { return os.Symlink(path, path) }, // ELOOP, even for root
		"app.before.corrupt-1": write("{\"half"),
		"cli.before.format-1":  write(`{"format":7,"owner":"cli"}`),
	}
	for aside, put := range files {
		path := filepath.Join(state, strings.TrimSuffix(aside, filepath.Ext(aside)))
		if err := errors.Join(os.RemoveAll(path), put(path)); err != nil {
			t.Fatal(err)
		}
	}
	for _, when := range []string{"damaged", "started again"} {
		p := h.start("director runs")
		h.runs(when, "web")
		p.wait("list every damaged file", func() bool {
			text := ""
			for _, problem := range h.status().Problems {
				if problem.Kind == model.ProblemStore && problem.Fix != "" {
					text += problem.Text + "\n"
				}
			}
			for aside := range files {
				if !strings.Contains(text, filepath.Join(state, aside)) {
					return false
				}
			}
			return strings.Contains(text, "the logs of the file's services begin again")
		})
		if out, code := h.exits("status", "--socket", h.socket); !strings.Contains(out, "file.json.unread-1") || code != 0 {
			t.Errorf("%s, weir status ends with %d and says:\n%s", when, code, out)
		}
		if out, _ := h.exits("doctor", "-c", h.file, "--socket", h.socket, "--agent-socket", h.beside("none.sock"), "--bpffs", h.bpffs); !strings.Contains(out, "warn  director store") || !strings.Contains(out, "file.json.unread-1") {
			t.Errorf("%s, weir doctor says:\n%s", when, out)
		}
		if out, _ := h.exits("events", "--last", "1000", "--socket", h.socket, "-o", "json"); !strings.Contains(out, "running.corrupt-1") {
			t.Errorf("%s, the events are:\n%s", when, out)
		}
		p.kill()
	}
	p := h.start("director runs")
	for aside := range files {
		if err := os.RemoveAll(filepath.Join(state, aside)); err != nil {
			t.Fatal(err)
		}
	}
	h.resolvedNow(p)
	p.stop()
}

// Stray files beside the sets, such as a copy of one, are shown until they are gone.
func TestStraysAreShown(t *testing.T) {
	h := newHost(t)
	state := h.beside("state")
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+state+"}}", "web")
	p := h.start("director runs")
	text, err := os.ReadFile(filepath.Join(state, "file.json"))
	if err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(state, "file (copy).json")
	if err := os.WriteFile(stray, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"while the director runs", "started again"} {
		p.wait("list the stray", func() bool {
			out, _ := h.exits("status", "--socket", h.socket)
			return strings.Contains(out, stray)
		})
		h.runs(when, "web")
		p.stop()
		p = h.start("director runs")
	}
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	h.resolvedNow(p)
	p.stop()
}
