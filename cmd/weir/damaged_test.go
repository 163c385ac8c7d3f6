package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

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
