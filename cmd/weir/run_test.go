package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/api"
	"weir.io/weir/lab/netlab"
)

const patience = time.Minute

// host is a director's host with a backend beside it:
//
//	director -eth0--eth0- backend 10.0.0.2
type host struct {
	*netlab.Host
	backend *netlab.Host
	t       *testing.T
	file    string
	socket  string
	bpffs   string
	binary  string   // what is run as weir; empty: this program
	env     []string // of processes
}

func newHost(t *testing.T) *host {
	t.Helper()
	lab := netlab.ForTest(t)
	director, backend := lab.Host("director"), lab.Host("backend")
	lab.Link(director, backend, netlab.LinkOptions{XDP: true, A: []string{"10.0.0.1/24"}, B: []string{"10.0.0.2/24"}}).B.ReceiveXDP()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return &host{Host: director, backend: backend, t: t, file: filepath.Join(dir, "weir.yaml"), socket: filepath.Join(dir, "director.sock"), bpffs: director.BPFFS()}
}

// configure writes a file with these services, each with the backend.
func (h *host) configure(head string, services ...string) {
	h.t.Helper()
	text := head + "\nservices:\n"
	for i, name := range services {
		text += fmt.Sprintf("- {name: %s, vip: 203.0.113.%d, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: 10.0.0.2}]}\n", name, i+1)
	}
	if err := os.WriteFile(h.file, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

const onEth0 = "director: {interfaces: [eth0]}"

// process is weir in a process of its own.
type process struct {
	t      *testing.T
	cmd    *netlab.Command
	stderr *lines
	ended  chan error
}

// weir returns a command of this program on the host.
func (h *host) weir(args ...string) *netlab.Command {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := h.Command(context.Background(), cmp.Or(h.binary, self), args...)
	cmd.Env = append(cmd.Env, append(h.env, asWeir+"=1")...)
	return cmd
}

// start starts a director and waits until its log says something.
func (h *host) start(logged string, more ...string) *process {
	h.t.Helper()
	return h.startVerb("run", logged, more...)
}

func (h *host) startVerb(verb, logged string, more ...string) *process {
	h.t.Helper()
	p := &process{t: h.t, stderr: &lines{}, ended: make(chan error, 1)}
	p.cmd = h.weir(append([]string{verb, "-c", h.file, "--socket", h.socket, "--bpffs", h.bpffs}, more...)...)
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	h.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	p.waitLog(logged)
	return p
}

func (p *process) waitLog(text string) {
	p.t.Helper()
	p.wait("log "+text, func() bool { return strings.Contains(p.stderr.String(), text) })
}

func (p *process) wait(what string, done func() bool) {
	p.t.Helper()
	for end := time.Now().Add(patience); !done(); {
		if time.Now().After(end) {
			p.t.Fatalf("the director did not %s; it logged:\n%s", what, p.stderr)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

// stop ends the process as systemd does.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if err != nil {
			p.t.Errorf("stopped, the director ends with %v", err)
		}
	case <-time.After(patience):
		p.t.Fatal("the director does not stop")
	}
}

// lines collects what a process writes.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// status asks the director.
func (h *host) status() api.Status {
	h.t.Helper()
	out, err := h.weir("status", "--alive", "-o", "json", "--socket", h.socket).Output()
	if err != nil {
		h.t.Fatal(err)
	}
	var status api.Status
	if err := json.Unmarshal(out, &status); err != nil {
		h.t.Fatal(err)
	}
	return status
}

// program returns the id of the XDP program on eth0; 0 if there is none.
func (h *host) program() (id uint32) {
	h.t.Helper()
	err := h.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil && l.Attrs().Xdp != nil {
			id = l.Attrs().Xdp.ProgId
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}

// fails runs weir and returns the one line that it must fail with.
func (h *host) fails(args ...string) string {
	h.t.Helper()
	var stderr bytes.Buffer
	cmd := h.weir(args...)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
	if err := cmd.Wait(); err == nil {
		h.t.Fatalf("weir %v succeeds", args)
	}
	for line := range strings.Lines(stderr.String()) {
		if strings.HasPrefix(line, "weir: ") {
			return strings.TrimSuffix(line, "\n")
		}
	}
	h.t.Fatalf("weir %v fails without an error of its own:\n%s", args, &stderr)
	return ""
}

// detach runs weir detach, and returns what it prints.
func (h *host) detach() string {
	h.t.Helper()
	out, err := h.weir("detach", "--bpffs", h.bpffs, "--socket", h.socket).Output()
	if err != nil {
		h.t.Fatal(err)
	}
	return string(out)
}

// failsToRun returns the error of a director that cannot start.
func (h *host) failsToRun() string {
	h.t.Helper()
	return h.fails("run", "-c", h.file, "--socket", h.socket, "--bpffs", h.bpffs)
}

func (h *host) services() []string {
	h.t.Helper()
	services, err := api.NewClient(h.socket).Services(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	var names []string
	for _, s := range services {
		names = append(names, s.Name)
		if s.Log.Generations != 1 || s.Log.Oldest.IsZero() || s.Log.Waits {
			h.t.Errorf("service %s, whose backends never change, has the log %+v", s.Name, s.Log)
		}
	}
	slices.Sort(names)
	return names
}

// TestDirectorFollowsItsFile is a director's life: start, reload, a bad file,
// SIGHUP, a second director, stop, start again, detach.
func TestDirectorFollowsItsFile(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`msg="director runs"`)
	if got := h.services(); !slices.Equal(got, []string{"web"}) {
		t.Fatalf("services %v, want web", got)
	}
	if s := h.status(); s.File != h.file || s.PID != p.cmd.Process.Pid || len(s.Interfaces) != 1 || s.Interfaces[0].XDP != "native" {
		t.Errorf("status %+v", s)
	}

	h.configure(onEth0, "web", "mail")
	p.wait("apply the new file", func() bool { return slices.Equal(h.services(), []string{"mail", "web"}) })

	h.configure(onEth0, "web", "web")
	want := h.file + `:4: services[1].name: \"web\" is already the name of services[0] (line 3)`
	p.waitLog(`msg=problem kind=file part=` + h.file + ` error="` + want)
	if s := h.status(); s.Refused != strings.ReplaceAll(want, `\"`, `"`) {
		t.Errorf("status says %q about the bad file", s.Refused)
	}
	if got := h.services(); !slices.Equal(got, []string{"mail", "web"}) {
		t.Errorf("a bad file changed the services to %v", got)
	}

	h.configure(onEth0, "web")
	p.wait("apply the file again", func() bool { return slices.Equal(h.services(), []string{"web"}) })
	if s := h.status(); s.Refused != "" {
		t.Errorf("the file is good again and status still says %q", s.Refused)
	}

	if err := os.Rename(h.file, h.file+"~"); err != nil {
		t.Fatal(err)
	}
	p.waitLog(`msg=problem kind=file part=` + h.file + ` fix="put it back" error="there is no ` + h.file + ` any more: the last version that ran goes on`)
	if s := h.status(); !strings.Contains(s.Refused, "any more") {
		t.Errorf("the file is gone and status says %q", s.Refused)
	}
	if err := os.Rename(h.file+"~", h.file); err != nil {
		t.Fatal(err)
	}
	p.wait("find the file again", func() bool { return h.status().Refused == "" })

	applied := strings.Count(p.stderr.String(), `msg="configuration applied"`)
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.wait("apply the file on SIGHUP", func() bool {
		return strings.Count(p.stderr.String(), `msg="configuration applied"`) > applied
	})

	if got, want := h.failsToRun(), "weir: another weir process is running: it answers on "+h.socket; got != want {
		t.Errorf("a second director fails with\n  %s\nwant\n  %s", got, want)
	}
	want = fmt.Sprintf("weir: a director runs (process %d): stop it first", p.cmd.Process.Pid)
	if got := h.fails("detach", "--bpffs", h.bpffs, "--socket", h.socket); got != want {
		t.Errorf("detach under a director fails with\n  %s\nwant\n  %s", got, want)
	}

	before := h.program()
	p.stop()
	if !strings.Contains(p.stderr.String(), "forwarding goes on") {
		t.Errorf("the end is logged as\n%s", p.stderr)
	}
	if got := h.program(); got != before || got == 0 {
		t.Errorf("after the director's end the program is %d, before it was %d", got, before)
	}

	h.start("msg=adopted").stop()
	if got, want := h.detach(), "removed the director on eth0\n"; got != want {
		t.Errorf("detach says %q, want %q", got, want)
	}
	if got, want := h.detach(), "nothing of weir under "+h.bpffs+"/weir\n"; got != want {
		t.Errorf("detach says %q again, want %q", got, want)
	}
	if got := h.program(); got != 0 {
		t.Errorf("after detach program %d is attached", got)
	}
	if left, _ := os.ReadDir(filepath.Join(h.bpffs, "weir")); len(left) > 0 {
		t.Errorf("detach leaves %v", left)
	}
}

func TestDirectorSaysWhatWaitsForItsNextStart(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`"msg":"director runs"`, "--log-format", "json")
	h.configure("director: {interfaces: [eth0], limits: {services: 10}}", "web")
	p.waitLog(`"msg":"problem","kind":"restart","part":"director.limits","fix":"start it again: then the change takes effect"`)
	p.stop()
}

// An edit that loses the interfaces must not remove the program from all of them.
func TestDirectorKeepsItsInterfaces(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`"msg":"director runs"`, "--log-format", "json")
	h.configure("agent: {interfaces: [eth0]}", "web")
	p.waitLog("director.interfaces: is empty")
	p.stop()
}

func TestDirectorCannotStart(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(h *host)
		want    string
	}{
		"no interfaces": {
			func(h *host) { h.configure("agent: {interfaces: [eth0]}", "web") },
			"director.interfaces: is empty",
		},
		"socket in the way": {
			func(h *host) {
				h.configure(onEth0, "web")
				if err := os.WriteFile(h.socket, nil, 0o600); err != nil {
					h.t.Fatal(err)
				}
			},
			"is there and is not a socket",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			test.prepare(h)
			if got := h.failsToRun(); !strings.Contains(got, test.want) {
				t.Errorf("the error is\n  %s\nwant one that says %q", got, test.want)
			}
		})
	}
}

func TestDirectorWithoutCapabilities(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	self := programForAll(t)
	if err := os.Chmod(filepath.Dir(filepath.Dir(h.file)), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"run", "-c", h.file}, {"detach"}} {
		cmd := h.Command(t.Context(), self, append(args, "--socket", h.socket, "--bpffs", h.bpffs)...)
		cmd.Env = append(cmd.Env, asWeir+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		want := "weir: CAP_BPF (programs and maps), CAP_NET_ADMIN (XDP on interfaces, next hops, routes, sysctls under /proc/sys/net), CAP_PERFMON (programs that compute with pointers, and tracepoints for the CPUs' utilization) missing: run as root, or give the process these capabilities\n"
		if err == nil || string(out) != want {
			t.Errorf("%s without capabilities: %v\n%swant\n%s", args[0], err, out, want)
		}
	}
}

// programForAll returns the test binary's path, where an ordinary user can run it.
func programForAll(t *testing.T) string {
	t.Helper()
	self := filepath.Join(t.TempDir(), "weir")
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for dir := self; ; {
		if dir = filepath.Dir(dir); dir == os.TempDir() || dir == "/" {
			break
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(self, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return self
}

// occupy attaches a foreign XDP program to an interface.
func occupy(h *host, dev string) (release func()) {
	h.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "firewall", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}) // XDP_PASS
	if err != nil {
		h.t.Fatal(err)
	}
	defer program.Close()
	err = h.Do(func() error {
		iface, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: iface.Attrs().Index, Flags: link.XDPDriverMode})
		if err == nil {
			release = sync.OnceFunc(func() { l.Close() })
			h.t.Cleanup(release)
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return release
}
