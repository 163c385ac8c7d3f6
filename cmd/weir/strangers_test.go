package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
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

// asStranger makes the test binary a program that holds this name, and is not weir.
const asStranger = "WEIR_TEST_STRANGER"

func holdName(name string) {
	listener, err := net.Listen("unix", name)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(name)
	// A process in which all goroutines wait for nothing ends, and a listener that nothing uses is closed.
	for {
		if conn, err := listener.Accept(); err == nil {
			conn.Close()
		}
	}
}

// stranger starts a process of another program on the host that holds a name, and returns how to end it.
func (h *host) stranger(name string, user uint32) (process int, end func()) {
	h.t.Helper()
	cmd := exec.Command("/proc/self/exe") // every user may start it, whatever directory it is in
	cmd.Env = append(os.Environ(), asStranger+"="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: user, Gid: user}}
	h.onHost(func() error {
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != name {
			return fmt.Errorf("the stranger says %q (%v)", line, err)
		}
		return nil
	})
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	}
	h.t.Cleanup(end)
	return cmd.Process.Pid, end
}

// A stranger without weir's capabilities that has the name of a director's or an agent's lock keeps
// neither from starting: it is shown everywhere until the lock is taken. One that could be weir,
// such as root of a container with the host's network, is named by the error, which says what to
// do.
func TestStrangerHasTheNameOfTheLock(t *testing.T) {
	for _, row := range []struct{ verb, name string }{{"run", "@weir/director-weir-"}, {"agent", "@weir/agent"}} {
		t.Run(row.verb, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.write("director: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}\ndirectors: [10.0.0.2]\nservices:\n" +
				"- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: ipip, backends: [{address: 10.0.0.1}]}\n")
			name := row.name
			if row.verb == "run" {
				hash := sha256.Sum256([]byte(filepath.Join(h.bpffs, "weir")))
				name += fmt.Sprintf("%x", hash[:4])
			}
			able, end := h.stranger(name, 0)
			got := h.fails(row.verb, "-c", h.file, "--socket", h.socket, "--bpffs", h.bpffs)
			if !strings.Contains(got, fmt.Sprintf("process %d (", able)) || !strings.Contains(got, name) || !strings.Contains(got, "end that process") {
				t.Errorf("weir %s ends with %q", row.verb, got)
			}
			end()
			process, end := h.stranger(name, 12345)
			text := fmt.Sprintf("lock: %s is not held, so a second process would not be kept out of this network namespace: process %d (", name, process)
			p := h.startVerb(row.verb, map[string]string{"run": `msg="director runs"`, "agent": `msg="agent runs"`}[row.verb])
			list := func() []model.Problem {
				if row.verb == "run" {
					return h.statusNow().Problems
				}
				status, err := api.NewClient(h.socket).AgentStatus(t.Context())
				if err != nil {
					return []model.Problem{{Text: err.Error()}}
				}
				return status.Problems
			}
			p.wait("list the stranger", func() bool {
				found := list()
				return len(found) == 1 && found[0].Kind == model.ProblemHost && found[0].Part == "lock" && found[0].Severity == model.SeverityWarning &&
					strings.HasPrefix(found[0].Text, text) && found[0].Fix != ""
			})
			metric, events := `weir_problems{kind="host",severity="warning"} 1`, []string{"events", "--last", "1000", "--socket", h.socket, "-o", "json"}
			if row.verb == "agent" {
				metric, events = "weir_agent_problems{kind=\"host\",severity=\"warning\"} 1", append(events, "--agent")
			}
			if body := h.scrapes(h.socket); !strings.Contains(body, metric) {
				t.Errorf("metrics do not say %s", metric)
			}
			if out, _ := h.exits(events...); !strings.Contains(out, text) {
				t.Errorf("the events are:\n%s", out)
			}
			end()
			p.wait("take the lock", func() bool { return len(list()) == 0 })
			h.onHost(func() error {
				conn, err := net.Listen("unix", name)
				if err == nil {
					conn.Close()
					t.Error("the lock is not taken")
				}
				return nil
			})
			p.stop()
		})
	}
}
