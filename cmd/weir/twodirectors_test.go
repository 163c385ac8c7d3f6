package main

import (
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

// If somebody removes the pins and starts a second director before the first one has put them back,
// the first keeps the interface, both say so, and neither touches what the other has. The second
// takes over when the first one ends.
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
	q := second.start("director runs")
	send(syscall.SIGCONT)
	p.wait("say that another one has its directory", func() bool { return h.lists(model.ProblemHost, "another director runs on it") })
	q.wait("say that another one has the interface", func() bool { return second.lists(model.ProblemInterface, "another XDP program") })
	for range 2 { // both directors have looked at all parts again when a damage is repaired
		a, b := h.statusNow(), second.statusNow()
		before := repairs(&a, "sysctls") + repairs(&b, "sysctls")
		h.stopForwarding()
		p.wait("repair a hand", func() bool {
			a, b = h.statusNow(), second.statusNow()
			return repairs(&a, "sysctls")+repairs(&b, "sysctls") > before
		})
	}
	for _, one := range []*host{h, &second} {
		s := one.statusNow()
		for _, part := range []string{"xdp", "tc", "pins"} {
			if n := repairs(&s, part); n > 0 {
				t.Errorf("a director has repaired part %s %d times: they fight", part, n)
			}
		}
	}
	if h.program() != first || !h.lists(model.ProblemHost, "another director runs on it") {
		t.Errorf("program %d is on the interface, and the first director's is %d; it lists %+v", h.program(), first, h.statusNow().Problems)
	}
	p.kill()
	q.wait("take the interface", func() bool { return h.program() != first && h.program() != 0 && len(second.statusNow().Problems) == 0 })
	q.stop()
}
