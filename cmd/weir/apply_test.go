package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// applies runs weir apply with these services, and returns what it prints.
func (h *host) applies(t *testing.T, owner string, vips map[string]int, more ...string) (string, bool) {
	t.Helper()
	text := "services: []\n"
	if len(vips) > 0 {
		text = "services:\n"
	}
	for name, vip := range vips {
		text += fmt.Sprintf("- {name: %s, vip: 203.0.113.%d, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: 10.0.0.2}]}\n", name, vip)
	}
	file := filepath.Join(filepath.Dir(h.file), "set.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := h.weir(append([]string{"apply", "-f", file, "--owner", owner, "--socket", h.socket}, more...)...).CombinedOutput()
	// Columns are as wide as the widest cell: one space is enough to look for.
	return strings.Join(strings.Fields(string(out)), " "), err == nil
}

// forwards checks which services the director has in the kernel.
func (h *host) forwards(t *testing.T, want ...string) {
	t.Helper()
	out, err := h.weir("services", "--socket", h.socket).CombinedOutput()
	if err != nil {
		t.Fatalf("weir services: %v\n%s", err, out)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		names = append(names, strings.Fields(line)[0])
	}
	if got := strings.Join(names[1:], " "); got != strings.Join(want, " ") {
		t.Errorf("the director forwards %q, want %q", got, want)
	}
}

func TestApply(t *testing.T) {
	h := newHost(t)
	dir := filepath.Join(filepath.Dir(h.file), "state")
	head := "director: {interfaces: [eth0], store: {directory: " + dir + "}}"
	h.configure(head, "mine")
	p := h.start("director runs")
	if out, ok := h.applies(t, "cli", map[string]int{"web": 10}, "--dry-run"); !ok || !strings.Contains(out, "added web") {
		t.Errorf("a dry run prints %s", out)
	}
	h.forwards(t, "mine")
	if out, ok := h.applies(t, "cli", map[string]int{"web": 10}); !ok || !strings.Contains(out, "added web") {
		t.Errorf("apply prints %s", out)
	}
	h.forwards(t, "mine", "web")
	for owner, vip := range map[string]int{"cli": 1, "other": 10, "file": 20} {
		out, ok := h.applies(t, owner, map[string]int{"clash": vip})
		if ok || !strings.Contains(out, fmt.Sprintf("owner %q", owner)) {
			t.Errorf("owner %s may have 203.0.113.%d: %s", owner, vip, out)
		}
	}
	h.forwards(t, "mine", "web")
	// The file cannot take what a set has.
	h.configure(head, "mine", "web")
	p.waitLog("configuration not applied yet")
	h.forwards(t, "mine", "web")
	h.configure(head, "mine")
	p.stop()
	p = h.start("director runs")
	h.forwards(t, "mine", "web")
	if out, ok := h.applies(t, "cli", map[string]int{"api": 11}); !ok || !strings.Contains(out, "added api") || !strings.Contains(out, "removed web") {
		t.Errorf("apply prints %s", out)
	}
	h.forwards(t, "mine", "api")
	if out, ok := h.applies(t, "cli", nil); !ok {
		t.Errorf("an empty set: %s", out)
	}
	h.forwards(t, "mine")
	p.stop()
}

// A director whose state is damaged does not start, and what runs goes on.
func TestDamagedStateIsRefused(t *testing.T) {
	h := newHost(t)
	dir := filepath.Join(filepath.Dir(h.file), "state")
	h.configure("director: {interfaces: [eth0], store: {directory: "+dir+"}}", "mine")
	p := h.start("director runs")
	if out, ok := h.applies(t, "cli", map[string]int{"web": 10}); !ok {
		t.Fatal(out)
	}
	p.stop()
	if err := os.Truncate(filepath.Join(dir, "cli.json"), 60); err != nil {
		t.Fatal(err)
	}
	out, err := h.weir("run", "-c", h.file, "--socket", h.socket, "--bpffs", h.bpffs).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "cli.json:2:") {
		t.Errorf("a director with a damaged state ends with %v and %s", err, out)
	}
}

// Nobody needs to configure where state is kept.
func TestApplyWithoutConfiguredStore(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "mine")
	p := h.start("director runs")
	if out, ok := h.applies(t, "cli", map[string]int{"web": 10}); !ok {
		t.Errorf("apply prints %s", out)
	}
	p.stop()
	p = h.start("director runs")
	h.forwards(t, "mine", "web")
	p.stop()
	if _, err := os.Stat(filepath.Join(h.Dir(), "state", "cli.json")); err != nil {
		t.Error("the state is not where the service manager says:", err)
	}
}
