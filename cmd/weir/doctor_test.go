package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/lab/netlab"
)

// doctor examines the host and returns the exit status and what is printed.
func (h *host) doctor(args ...string) (code int, stdout, stderr string) {
	h.t.Helper()
	var out, errs bytes.Buffer
	args = append([]string{"doctor", "-c", h.file, "--bpffs", h.bpffs}, args...)
	err := h.Do(func() error {
		code = execute(h.t.Context(), args, &out, &errs)
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return code, out.String(), errs.String()
}

// wantLines checks that lines are printed, whatever the width of the columns.
func wantLines(t *testing.T, out string, want ...string) {
	t.Helper()
	squeezed := make(map[string]bool)
	for line := range strings.Lines(out) {
		squeezed[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, line := range want {
		if !squeezed[line] {
			t.Errorf("doctor does not say\n  %s\nit says\n%s", line, out)
		}
	}
}

func TestDoctor(t *testing.T) {
	h := newHost(t)

	t.Run("healthy", func(t *testing.T) {
		h.configure(onEth0, "web")
		code, out, stderr := h.doctor()
		if code != 0 || stderr != "" {
			t.Errorf("exit status %d, %q", code, stderr)
		}
		wantLines(t, out,
			"ok config "+h.file+": 1 service",
			"ok interface eth0 is up, MTU 1500",
			"warn backend 10.0.0.2 the MAC address of its next hop 10.0.0.2 is not known: it gets no packets until it is; "+
				"fix: ping 10.0.0.2, and see that eth0 reaches it")
	})
	t.Run("keys", func(t *testing.T) {
		text := "director: {interfaces: [eth0]}\nservices:\n" +
			"- {name: h3, vip: 203.0.113.10, protocol: udp, port: 443, mode: gue, backends: [],\n" +
			"   quic: [{id: 0, nonce-length: 13, key: 8f95f09245765f80256934e50c66207f}]}\n"
		warning := "warn config " + h.file + ": has keys of services with quic, and everybody on this host can read it; fix: chmod o= " + h.file
		if err := errors.Join(os.WriteFile(h.file, []byte(text), 0o644), os.Chmod(h.file, 0o644)); err != nil {
			t.Fatal(err)
		}
		_, out, _ := h.doctor()
		wantLines(t, out, warning)
		if err := os.Chmod(h.file, 0o640); err != nil {
			t.Fatal(err)
		}
		if _, out, _ = h.doctor(); strings.Contains(out, "keys") || strings.Contains(out, "8f95") {
			t.Errorf("doctor speaks of keys that nobody can read:\n%s", out)
		}
	})
	t.Run("sick", func(t *testing.T) {
		h.configure("director: {interfaces: [eth7]}", "web")
		code, out, stderr := h.doctor()
		if code != 1 || stderr != "weir: something does not work: see the FAIL lines\n" {
			t.Errorf("exit status %d, %q", code, stderr)
		}
		wantLines(t, out, "FAIL interface eth7 there is no such interface; fix: there are: eth0")
	})
	t.Run("other name", func(t *testing.T) {
		err := h.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkAddAltName(link, "enp1s0")
		})
		if err != nil {
			t.Fatal(err)
		}
		h.configure("director: {interfaces: [enp1s0], snat: {addresses: [10.0.0.1]}}", "web")
		code, out, _ := h.doctor()
		if code != 0 {
			t.Errorf("exit status %d, want 0 where an interface is named by another name of its", code)
		}
		wantLines(t, out, "ok interface eth0 is up, MTU 1500")
	})
	t.Run("ended", func(t *testing.T) {
		h.configure(onEth0, "web")
		dir := t.TempDir()
		for _, pin := range []string{"weir/xdp-eth0", "weir/agent/links/eth0"} {
			if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, pin)), 0o755), os.WriteFile(filepath.Join(dir, pin), nil, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		socket := filepath.Join(dir, "none.sock")
		t.Setenv("WEIR_SOCKET", socket)
		code, out, _ := h.doctor("--bpffs", dir, "--agent-socket", socket)
		if code != 1 {
			t.Errorf("exit status %d, want 1: the file asks for a director", code)
		}
		for _, line := range []string{"FAIL director no director", "warn agent no agent"} {
			wantLines(t, out, line+" answers at "+socket+", and an earlier one's programs are attached: they handle packets as they did, whatever changes; "+
				"fix: start it; if it listens elsewhere, name its socket; if it is to end, weir detach")
		}
	})
	t.Run("bad file", func(t *testing.T) {
		if err := os.WriteFile(h.file, []byte("service: []\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		code, out, _ := h.doctor()
		if code != 1 {
			t.Errorf("exit status %d, want 1", code)
		}
		wantLines(t, out, "FAIL config "+h.file+":1: service: unknown key; did you mean services? (known here: agent, api, bfd, bgp, checks, coalesce, director, directors, hooks, loads, notice, ovn, segments, services, suspect)")
	})
	t.Run("json", func(t *testing.T) {
		h.configure(onEth0, "web")
		_, out, _ := h.doctor("-o", "json")
		var findings []doctor.Finding
		if err := json.Unmarshal([]byte(out), &findings); err != nil {
			t.Fatal(err)
		}
		if len(findings) < 6 || findings[0].Check != "config" || findings[0].Level != doctor.OK {
			t.Errorf("findings %+v", findings)
		}
	})
}

// TestAgentAnswers starts an agent on a backend's host and asks it.
func TestAgentAnswers(t *testing.T) {
	lab := netlab.ForTest(t)
	backend, director := lab.Host("backend"), lab.Host("director")
	lab.Link(backend, director, netlab.LinkOptions{XDP: true, A: []string{"10.0.0.2/24"}, B: []string{"10.0.0.1/24"}})
	dir := t.TempDir()
	h := &host{Host: backend, t: t, file: dir + "/weir.yaml", socket: dir + "/agent.sock", bpffs: backend.BPFFS()}
	h.configure("directors: [10.0.0.1]", "web")
	p := h.startVerb("agent", `msg="agent runs"`)
	var out bytes.Buffer
	// It says that it runs, and then answers.
	for end := time.Now().Add(patience); execute(t.Context(), []string{"status", "--agent", "--socket", h.socket}, &out, &out) != 0; time.Sleep(5 * time.Millisecond) { // between two tries
		if time.Now().After(end) {
			t.Fatalf("status --agent: %s", &out)
		}
		out.Reset()
	}
	wantLines(t, out.String(), "INTERFACE INGRESS EGRESS REDIRECT MTU WHY-NO-XDP", "web 203.0.113.1 tcp 80 1460 0 0")
	if metrics := h.metrics(); !strings.Contains(metrics, "\nweir_agent_service_packets_total{service=\"web\"} 0\n") {
		t.Errorf("/metrics of an agent:\n%s", metrics)
	}
	if got := h.fails("detach", "--bpffs", h.bpffs); !strings.Contains(got, "another weir agent is running") {
		t.Errorf("detach under an agent fails with %s", got)
	}
	p.stop()
	if err := h.weir("detach", "--bpffs", h.bpffs, "--socket", h.socket).Run(); err != nil {
		t.Error(err)
	}
}
