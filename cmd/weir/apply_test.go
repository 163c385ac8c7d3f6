package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
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
	out, err := h.weir(append([]string{"apply", "-f", file, "--owner", owner, "--measure", "0", "--socket", h.socket}, more...)...).CombinedOutput()
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
	// The file cannot take a service that a set has.
	h.configure(head, "mine", "web")
	p.waitLog("level=ERROR msg=problem kind=file")
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

// The slots that move according to apply match its dry run, and the director's ring.
func TestApplySaysWhatMoves(t *testing.T) {
	h := newHost(t)
	dir := filepath.Join(filepath.Dir(h.file), "state")
	h.configure("director: {interfaces: [eth0], store: {directory: "+dir+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	file := filepath.Join(filepath.Dir(h.file), "moving.yaml")
	apply := func(keys string, backends int, more ...string) []string {
		t.Helper()
		text := "services:\n- {name: web, vip: 203.0.113.10, protocol: tcp, port: 80, ring-size: 1021, " + keys + "backends: ["
		for i := range backends {
			text += fmt.Sprintf("{address: 10.0.0.%d},", 2+i)
		}
		if err := os.WriteFile(file, []byte(text+"]}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := h.weir(append([]string{"apply", "-f", file, "--measure", "0", "--socket", h.socket}, more...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("weir apply: %v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "web" {
				return fields
			}
		}
		t.Fatalf("apply says nothing of the service: %s", out)
		return nil
	}
	if got := strings.Join(apply("mode: l2dsr, ", 3), " "); got != "added web - - - - -" {
		t.Errorf("of a new service apply says %q", got)
	}
	last, total := 0, 0
	for _, change := range []struct {
		keys      string
		backends  int
		low, high int
	}{
		{"mode: l2dsr, ", 4, 250, 300},
		{"mode: nat, ", 4, 0, 0},
		{"mode: nat, affinity: source-ip, ", 4, 764, 767},
		{"mode: nat, affinity: source-ip, ", 3, 250, 300},
	} {
		before := apply(change.keys, change.backends, "--dry-run")
		after := apply(change.keys, change.backends)
		if strings.Join(before, " ") != strings.Join(after, " ") || len(after) != 7 || after[2] != "1021" || after[5] != "-" || after[6] != "0" {
			t.Fatalf("with %q and %d backends a dry run says %q, and apply %q", change.keys, change.backends, before, after)
		}
		moved, err := strconv.Atoi(after[3])
		if err != nil || moved < change.low || moved > change.high || after[4] != fmt.Sprintf("%.1f%%", float64(moved)/10.21) {
			t.Errorf("with %q and %d backends apply says %q, want %d to %d slots to move", change.keys, change.backends, after, change.low, change.high)
		}
		if moved > 0 {
			last, total = moved, total+moved
			p.waitLog(fmt.Sprintf(`msg="slots moved" service=web moved=%d slots=1021 share=%s held=0`, moved, after[4]))
		}
	}
	services, err := api.NewClient(h.socket).Services(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		if s.Name == "web" && (s.Log.Moved != last || s.Log.MovedTotal != uint64(total)) {
			t.Errorf("the director says that %d of %d slots have moved last, want %d of %d", s.Log.Moved, s.Log.MovedTotal, last, total)
		}
	}
	if metrics, want := h.metrics(), fmt.Sprintf(`weir_service_slots_moved_total{service="web"} %d`, total); !strings.Contains(metrics, want) {
		t.Errorf("the metrics do not say %s", want)
	}
}

// A director whose state is damaged does not start, and what runs keeps running.
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

// The state's directory is found without a configuration.
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
