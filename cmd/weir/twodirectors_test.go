package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// statusNow is what a director says of itself.
func (h *host) statusNow() api.Status {
	h.t.Helper()
	s, err := api.NewClient(h.socket).Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// lists reports whether a director lists a problem with these words.
func (h *host) lists(kind model.ProblemKind, words string) bool {
	h.t.Helper()
	for _, p := range h.statusNow().Problems {
		if p.Kind == kind && strings.Contains(p.Text, words) {
			return true
		}
	}
	return false
}

// If somebody removes the pins and starts a second director before the first one has put them back, the
// second does not start, and names the first, which keeps the interface and puts its pins back. The
// second takes over when the first one has ended.
func TestTwoDirectorsDoNotFight(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	text := func(state string) string {
		return "director: {interfaces: [eth0], store: {directory: " + h.beside(state) + "}, snat: {addresses: [10.0.0.1], ports: 20000-29999}}\nservices:\n" +
			"- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: 10.0.0.2}]}\n"
	}
	h.write(text("state"))
	p := h.start("director runs")
	first := h.program()
	send := func(signal syscall.Signal) {
		t.Helper()
		if err := p.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	send(syscall.SIGSTOP)
	h.onHost(func() error { return os.RemoveAll(filepath.Join(h.bpffs, "weir")) })
	second := *h
	second.socket, second.file = h.beside("second.sock"), h.beside("second.yaml")
	second.write(text("state2"))
	named := fmt.Sprintf("another director runs on it: process %d ", p.cmd.Process.Pid)
	if got := second.failsToRun(); !strings.Contains(got, named) {
		t.Errorf("the second director ends with %q, want %q", got, named)
	}
	send(syscall.SIGCONT)
	p.wait("put its pins back", func() bool {
		_, err := os.Lstat(filepath.Join(h.bpffs, "weir", "xdp-eth0"))
		return err == nil && len(h.statusNow().Problems) == 0
	})
	if got := second.failsToRun(); !strings.Contains(got, "another director runs on it") {
		t.Errorf("beside the pins the second director ends with %q", got)
	}
	if h.program() != first {
		t.Errorf("program %d is on the interface, and the first director's is %d", h.program(), first)
	}
	p.kill()
	q := second.start("msg=\"director runs\"")
	q.wait("take over", func() bool { return h.program() != 0 && len(second.statusNow().Problems) == 0 })
	q.stop()
}
