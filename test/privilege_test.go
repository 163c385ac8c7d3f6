package test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"weir.io/weir/internal/bfd"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/lab/netlab"
)

// ordinaryUser is any user that is not root.
const ordinaryUser = 4711

// bits are the numbers of capabilities in capabilities(7). They are repeated here because the
// numbers of the package under test would prove little.
var bits = map[string]uintptr{"CAP_BPF": unix.CAP_BPF, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_PERFMON": unix.CAP_PERFMON,
	"CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_SYS_NICE": unix.CAP_SYS_NICE,
	"CAP_IPC_LOCK": unix.CAP_IPC_LOCK, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN}

// ordinary runs the process as an ordinary user that owns its files, with those capabilities.
func (d *daemon) ordinary(gives ...string) {
	d.t.Helper()
	d.user, d.gives = &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}, nil
	for _, name := range gives {
		d.gives = append(d.gives, bits[name])
	}
	for _, path := range []string{d.host.Dir(), d.bpffs} {
		if err := os.Chown(path, ordinaryUser, ordinaryUser); err != nil {
			d.t.Fatal(err)
		}
	}
	letIn(d.t, d.host.Dir())
	letIn(d.t, d.binary)
}

// letIn lets every user reach this path.
func letIn(t *testing.T, path string) {
	t.Helper()
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// neededBy returns the names of the capabilities that a process needs, unless it runs programs of checks as
// another user.
func neededBy(p privilege.Process) (names []string) {
	asOther := model.Config{Director: model.Director{ExecChecks: &model.ExecChecks{User: "x"}}}
	for _, n := range privilege.Needs(p) {
		if n.NeededBy(&asOther) == "" {
			names = append(names, n.Capability)
		}
	}
	return names
}

// maskOf returns the capabilities as /proc writes them.
func maskOf(names ...string) string {
	var mask uint64
	for _, name := range names {
		mask |= 1 << bits[name]
	}
	return fmt.Sprintf("%016x", mask)
}

// An ordinary user's director and agents forward, explain, capture, check, answer routers at port
// 179 and are upgraded with exactly the capabilities that the documents list. Without any one of
// the required ones they do not start, and say which one is missing, and what for.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestExactlyTheCapabilitiesThatAreNeeded(t *testing.T) {
	other := otherABI(t)
	letIn(t, other)
	l := newLab(t, size{backends: 2})
	nat, gue := way{mode: "nat"}, way{mode: "gue"}
	const check = "  health: {kind: icmp, interval: 200ms, panic: 0}\n"
	services := []string{nat.service("tcp", "7", everyBackend(2)) + check, nat.service("udp", "7", everyBackend(2)), gue.service("tcp", "7", everyBackend(2))}
	for i, b := range l.backends {
		agent := newDaemon(t, b, "agent", configText("", "eth0", services...))
		agent.ordinary("CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON")
		agent.refuses(privilege.Agent, "CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON")
		agent.ordinary("CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON")
		agent.start()
		agent.ready()
		agent.wantCapabilities([]string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"}, nil)
		echo(t, b, nat.at(i+1, 7))
		echoStream(t, b, nat.at(i+1, 7))
		echoStream(t, b, gue.at(i+1, 7))
	}
	text := configText("eth0", "", services...) + fmt.Sprintf("bgp:\n  asn: 65001\n  router-id: 10.2.0.11\n  listen: [%v]\n"+
		"  neighbors:\n  - {address: %v, asn: 65000, passive: true, bfd: {interval: 300ms}}\n", lanAddress(directorHost, false), lanAddress(routerHost, false))
	director := newDaemon(t, l.director, "run", text)
	director.refuses(privilege.Run, "CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "CAP_NET_RAW", "CAP_NET_BIND_SERVICE")
	director.ordinary(neededBy(privilege.Run)...)
	director.start()
	director.ready()
	handed := neededBy(privilege.BFD)
	director.wantCapabilities(neededBy(privilege.Run), handed)

	load := startLoad(t, l, nat)
	l.ping(netip.AddrPortFrom(gue.vip(), 7), 3)
	waitFor(t, "checks to have found backends well", func() bool { return director.checked(2) })
	out := on(t, l.director, weir, "explain", "--socket", director.socket, "10.0.0.2:5555", fmt.Sprintf("%v:7/tcp", nat.vip()))
	if !strings.Contains(out, "forward_nat") {
		t.Errorf("weir explain says\n%s", out)
	}
	c := director.startCapture("--service", "nat-4-tcp-7")
	director.runs("capture")
	ports := l.ping(netip.AddrPortFrom(nat.vip(), 7), 1)
	waitFor(t, "a connection in the capture", func() bool {
		return slices.ContainsFunc(c.packets(), func(p filed) bool { return p.port == ports[0] })
	})
	c.end(os.Interrupt)
	director.runs("director")
	director.replace(other, syscall.SIGKILL)
	director.ready()
	load.more(100)
	director.replace(weir, syscall.SIGTERM)
	director.ready()
	load.more(100)
	load.wantUndisturbed()
	for _, warning := range []string{"ermi", "refused", "level=ERROR"} {
		for line := range strings.Lines(director.logged()) {
			if strings.Contains(line, warning) {
				t.Errorf("a director with all capabilities logs: %s", line)
			}
		}
	}
}

// checked reports whether the probes find this many backends up.
func (d *daemon) checked(n int) bool {
	services, err := d.services()
	if err != nil {
		return false
	}
	found := 0
	for _, s := range services {
		for _, b := range s.Backends {
			if b.Health != nil && b.Health.State == model.HealthUp {
				found++
			}
		}
	}
	return found == n
}

// refuses checks that the process does not start if one of these is missing, and says why.
func (d *daemon) refuses(p privilege.Process, required ...string) {
	d.t.Helper()
	for _, without := range required {
		d.ordinary(slices.DeleteFunc(neededBy(p), func(name string) bool { return name == without || name == "CAP_SYS_ADMIN" })...)
		d.start()
		<-d.ended
		i := slices.IndexFunc(privilege.Needs(p), func(n privilege.Need) bool { return n.Capability == without })
		want := fmt.Sprintf("%s)", privilege.Needs(p)[i].For)
		lines := strings.Split(strings.TrimSpace(d.logged()), "\n")
		last := lines[len(lines)-1]
		if d.cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(last, "weir: "+without+" (") || !strings.Contains(last, want+" missing: ") {
			d.t.Errorf("weir %s without %s ends with %d and says\n%s", d.verb, without, d.cmd.ProcessState.ExitCode(), last)
		}
	}
}

// wantCapabilities checks that each thread of the process has those, can use all except the handed
// ones, cannot get others, and by default gives none to processes that it starts.
func (d *daemon) wantCapabilities(all, handed []string) {
	d.t.Helper()
	own := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(handed, name) })
	want := map[string]string{"CapPrm": maskOf(all...), "CapEff": maskOf(own...), "CapInh": maskOf(), "CapAmb": maskOf(), "NoNewPrivs": "1"}
	if d.user == nil {
		want["CapBnd"] = maskOf(handed...) // an ordinary user's process cannot change the bounding set, and gains nothing by it
	}
	wantStatus(d.t, d.cmd.Process.Pid, want)
}

// wantStatus checks the kernel's status of all threads of a process.
func wantStatus(t *testing.T, pid int, want map[string]string) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no threads: %v", pid, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		wantIn(t, path, string(text), want)
	}
}

// wantIn checks lines of a status.
func wantIn(t *testing.T, where, text string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		got[key] = strings.TrimSpace(value)
	}
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s: %s is %s, want %s", where, key, got[key], value)
		}
	}
}

// Root's director drops all other capabilities, for itself and for the processes that it starts: a
// hook has none, and the BFD process only its own.
func TestRootDropsTheRest(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{})
	told := filepath.Join(l.director.Dir(), "status")
	director := startDaemon(t, l.director, "run", configText("eth0", "")+
		fmt.Sprintf("bfd:\n  neighbors:\n  - {address: %v}\nhooks:\n- {name: look, exec: [/bin/sh, -c, \"cat /proc/self/status >%s.new; mv %[2]s.new %[2]s\"]}\n", lanAddress(routerHost, false), told))
	defer director.end(syscall.SIGTERM)
	handed := neededBy(privilege.BFD)
	director.wantCapabilities(neededBy(privilege.Run), handed)

	var hook []byte
	waitFor(t, "the hook to have run", func() (ran bool) {
		var err error
		hook, err = os.ReadFile(told)
		return err == nil
	})
	nothing := map[string]string{"CapPrm": maskOf(), "CapEff": maskOf(), "CapInh": maskOf(), "CapAmb": maskOf(), "NoNewPrivs": "1"}
	wantIn(t, "a hook", string(hook), nothing)

	// A hook's program gets what its hook names of what the process keeps for programs: what the file has when
	// the process starts.
	netAdmin := "CAP_NET_ADMIN"
	given := newLab(t, size{})
	told = filepath.Join(given.director.Dir(), "status")
	hookText := func(capability string) string {
		return configText("eth0", "") + fmt.Sprintf("hooks:\n- {name: look, capabilities: [%s], exec: [/bin/sh, -c, \"cat /proc/self/status >%s.new; mv %[2]s.new %[2]s\"]}\n", capability, told)
	}
	with := startDaemon(t, given.director, "run", hookText(netAdmin))
	defer with.end(syscall.SIGTERM)
	waitFor(t, "the hook with a capability to have run", func() bool {
		hook, _ = os.ReadFile(told)
		return len(hook) > 0
	})
	wantIn(t, "a hook with a capability", string(hook), map[string]string{"CapPrm": maskOf(netAdmin), "CapEff": maskOf(netAdmin), "CapAmb": maskOf(netAdmin), "NoNewPrivs": "1"})
	with.edit(hookText("CAP_NET_RAW"))
	with.waitFor("say that a capability is not kept for programs", func() bool {
		status := with.directorStatus()
		return len(status.Hooks) == 1 && strings.Contains(status.Hooks[0].Problem, "CAP_NET_RAW") && strings.Contains(status.Hooks[0].Problem, "restart weir run")
	})

	var pid int
	waitFor(t, "the BFD process", func() bool {
		out, err := tryOn(t, l.director, weir, "bfd", "status", "--socket", bfd.Socket(filepath.Join(l.director.Dir(), "run.sock")))
		if err != nil {
			return false
		}
		for line := range strings.Lines(out) {
			if words := strings.Fields(line); len(words) > 1 && words[0] == "process" {
				pid, err = strconv.Atoi(strings.TrimSuffix(words[1], ","))
			}
		}
		return err == nil && pid > 0
	})
	wantStatus(t, pid, map[string]string{"CapPrm": maskOf(handed...), "CapEff": maskOf(handed...), "CapInh": maskOf(), "CapAmb": maskOf(), "NoNewPrivs": "1"})
	wantRealtime(t, pid)
}

// wantRealtime checks that a process has real-time priority.
func wantRealtime(t *testing.T, pid int) {
	t.Helper()
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil || attr.Policy != unix.SCHED_RR {
		t.Errorf("the BFD process runs by policy %+v, error %v; want real-time", attr, err)
	}
}

// Root that starts by hand what the units run as another user reads whose the directory is: without its
// other capabilities root may use only what is its own.
func TestRootIsToldWhoseFilesItMayNotUse(t *testing.T) {
	t.Parallel()
	l := netlab.ForTest(t)
	host := l.Host("director")
	l.Link(host, l.Switch("switch"), netlab.LinkOptions{XDP: true, A: []string{"10.2.0.11/24"}})
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(host.Dir(), "weir.yaml")
	if err := os.WriteFile(config, []byte(configText("eth0", "")), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"run", "agent"} {
		for _, its := range []string{"socket", "bpffs", "state"} {
			if verb == "agent" && its == "state" { // agents have a store only in a group
				continue
			}
			t.Run(verb+" "+its, func(t *testing.T) {
				dirs := map[string]string{"bpffs": filepath.Join(host.BPFFS(), "weir")}
				for _, name := range []string{"socket", "state"} {
					dirs[name] = filepath.Join(t.TempDir(), name)
				}
				for name, dir := range dirs {
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					if name == its {
						if err := os.Chown(dir, ordinaryUser, ordinaryUser); err != nil {
							t.Fatal(err)
						}
					}
				}
				defer os.RemoveAll(dirs["bpffs"])
				cmd := host.Command(t.Context(), weir, verb, "-c", config, "--bpffs", host.BPFFS(), "--socket", filepath.Join(dirs["socket"], "its.sock"))
				cmd.Env = append(os.Environ(), "STATE_DIRECTORY="+dirs["state"])
				log, err := os.Create(filepath.Join(t.TempDir(), "log"))
				if err != nil {
					t.Fatal(err)
				}
				defer log.Close()
				cmd.Stderr = log
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer cmd.Wait()
				defer cmd.Process.Kill() // an agent goes on without a socket
				waitFor(t, fmt.Sprintf("it to say that %s belongs to user %d", dirs[its], ordinaryUser), func() bool {
					said, err := os.ReadFile(log.Name())
					return err == nil && strings.Contains(string(said), fmt.Sprintf("%s belongs to user %d, and this process may not use it", dirs[its], ordinaryUser))
				})
			})
		}
	}
}
