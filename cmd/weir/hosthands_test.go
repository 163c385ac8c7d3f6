package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// onHost runs something in the host's network, or fails.
func (h *host) onHost(f func() error) {
	h.t.Helper()
	if err := h.Do(f); err != nil {
		h.t.Fatal(err)
	}
}

// run is a command of the host's.
func (h *host) run(name string, args ...string) {
	h.t.Helper()
	h.onHost(func() error {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// repairs is how often things of a part were repaired.
func repairs(s *api.Status, part string) uint64 {
	for _, p := range s.Upkeep {
		if p.Part == part {
			return p.Repairs
		}
	}
	return 0
}

// heard are the events of upkeep of a part, in words.
func (h *host) heard(part string) (texts []string) {
	h.t.Helper()
	out, err := h.weir("events", "-o", "json", "--socket", h.socket).Output()
	if err != nil {
		h.t.Fatal(err)
	}
	var events []api.Event
	if err := json.Unmarshal(out, &events); err != nil {
		h.t.Fatal(err)
	}
	for _, e := range events {
		if e.Kind == api.EventUpkeep && e.Part == part {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// TestHandsOnTheHost puts a hand on each part of a director's host, as soon as it answers and twice
// in a row: each is repaired, and said once. A third and a fourth on the same thing are too many.
func TestHandsOnTheHost(t *testing.T) {
	h := newHost(t)
	text := "director: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}, snat: {addresses: [10.0.0.1], ports: 20000-29999}}\nservices:\n" +
		"- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: 10.0.0.2}]}\n" +
		"- {name: far, vip: 203.0.113.2, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: 10.0.0.2}], health: {kind: tcp, interval: 1s}}\n"
	if err := os.WriteFile(h.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := h.start(`msg="director runs"`)
	pins := filepath.Join(h.bpffs, "weir")
	forwarding := func() {
		h.onHost(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/eth0/forwarding", []byte("0"), 0) })
	}
	for _, hand := range []struct {
		part  string
		touch func()
	}{
		{"xdp", func() {
			h.onHost(func() error {
				l, err := link.LoadPinnedLink(pins+"/xdp-eth0", nil)
				if err != nil {
					return err
				}
				return errors.Join(l.Detach(), l.Close())
			})
		}},
		{"tc", func() { h.onHost(func() error { return os.Remove(pins + "/undo-eth0") }) }},
		{"pins", func() { h.onHost(func() error { return os.RemoveAll(pins + "/state") }) }},
		{"sysctls", forwarding},
		{"checks", func() { h.run("ip", "rule", "del", "pref", "1") }},
		{"state", func() { h.onHost(func() error { return os.RemoveAll(h.beside("state")) }) }},
		{"socket", func() { h.onHost(func() error { return os.Remove(h.socket) }) }},
	} {
		for n := range uint64(2) {
			hand.touch()
			h.awaitAnswer("part "+hand.part+" is repaired", func(s *api.Status) bool { return repairs(s, hand.part) == n+1 && len(s.Problems) == 0 })
		}
		if texts := h.heard(hand.part); len(texts) != 2 || !strings.Contains(texts[0], "repaired") {
			t.Errorf("events of part %s are %q, want two that say that it was repaired", hand.part, texts)
		}
	}
	// Everything that is pinned at once, and the interface.
	h.onHost(func() error { return os.RemoveAll(pins) })
	h.awaitAnswer("all pins are there again", func(s *api.Status) bool {
		_, err := os.Stat(pins + "/xdp-eth0")
		_, other := os.Stat(pins + "/undo-eth0")
		return err == nil && other == nil && len(s.Problems) == 0
	})
	forwarding()
	h.awaitAnswer("a third hand is repaired", func(s *api.Status) bool { return repairs(s, "sysctls") == 3 })
	forwarding()
	h.awaitAnswer("a fourth hand is left alone, and said", func(s *api.Status) bool {
		return len(s.Problems) == 1 && s.Problems[0].Kind == model.ProblemHost && strings.Contains(s.Problems[0].Text, "somebody changes it back")
	})
	if code, out, _ := h.doctor("--socket", h.socket); code != 1 || !strings.Contains(out, "somebody changes it back") {
		t.Errorf("the exit status of doctor is %d:\n%s", code, out)
	}
	h.run("ip", "link", "set", "eth0", "down")
	h.awaitAnswer("an interface that is down is waited for", func(s *api.Status) bool {
		return len(s.Problems) > 1 && s.Problems[0].Kind == model.ProblemInterface || len(s.Problems) > 1 && s.Problems[1].Kind == model.ProblemInterface
	})
	p.stop()
}

// awaitAnswer is await of a director that may not answer for a while.
func (h *host) awaitAnswer(claim string, holds func(s *api.Status) bool) {
	h.t.Helper()
	var s api.Status
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // between two looks
		out, err := h.weir("status", "--alive", "-o", "json", "--socket", h.socket).Output()
		if err == nil && json.Unmarshal(out, &s) == nil && holds(&s) {
			return
		}
	}
	h.t.Fatalf("not seen within %v: %s; upkeep is %+v, problems %+v", patience, claim, s.Upkeep, s.Problems)
}
