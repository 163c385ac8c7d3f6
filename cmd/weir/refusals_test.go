package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
	"weir.io/weir/lab/etcdlab"
)

// kill ends the process as a power cut does.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	<-p.ended
}

// put makes the services of a text an owner's set.
func (h *host) put(owner, text string) {
	h.t.Helper()
	if _, err := api.NewClient(h.socket).PutSet(h.t.Context(), owner, api.SetText{Text: []byte(text)}, api.Condition{}); err != nil {
		h.t.Fatal(err)
	}
}

// runs fails unless the director has exactly these services.
func (h *host) runs(when string, names ...string) {
	h.t.Helper()
	services, err := api.NewClient(h.socket).Services(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	var got []string
	for i := range services {
		got = append(got, services[i].Name)
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		h.t.Errorf("%s, the director forwards %q, want %q", when, got, names)
	}
}

// write writes the text to the file.
func (h *host) write(text string) {
	h.t.Helper()
	if err := os.WriteFile(h.file, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

const appSet = "services: [{name: app, vip: 203.0.113.10, protocol: tcp, port: 80, mode: l2dsr, backends: [{name: a, address: 10.0.0.2}]}]"

// A file that conflicts with a set is refused, and that is shown everywhere, with the line and with
// where the set is. A start with this file continues with what ran; when the set is gone, the file
// runs.
func TestFileThatConflictsWithASet(t *testing.T) {
	h := newHost(t)
	head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}"
	h.configure(head, "web")
	p := h.start("director runs")
	h.put("cli", appSet)
	h.runs("at first", "web", "app")
	h.configure(head, "web", "app") // line 5
	check := func(when string) {
		t.Helper()
		got := h.problem(p, model.ProblemFile)
		if got.File != h.file || got.Line != 5 || got.Field != "services[1].name" || got.Owner != "cli" || got.Stored != h.beside("state/cli.json") {
			t.Errorf("%s, the problem is %+v", when, got)
		}
		h.shownEverywhere(model.ProblemFile, h.beside("state/cli.json"))
		h.runs(when, "web", "app")
	}
	check("refused")
	p.kill()
	p = h.start("director runs")
	check("started again")
	p.kill()
	p = h.start("director runs")
	h.put("cli", "services: []")
	h.resolvedEverywhere(p, model.ProblemFile)
	h.runs("when the set is gone", "web", "app")
	p.stop()
}

// What else a file says changes with its services: not while it is refused, and as soon as it is not.
func TestRefusedFileChangesNothingElse(t *testing.T) {
	h := newHost(t)
	head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}"
	h.configure(head, "web")
	p := h.start("director runs")
	h.put("cli", appSet)
	h.configure(head+"\napi: {read-only: [\"127.0.0.1:6084\"]}", "web", "app")
	answers := func() bool {
		return h.Do(func() error {
			c, err := net.Dial("tcp", "127.0.0.1:6084")
			if err == nil {
				c.Close()
			}
			return err
		}) == nil
	}
	h.problem(p, model.ProblemFile)
	if answers() {
		t.Error("the API of a refused file answers")
	}
	p.kill()
	p = h.start("director runs")
	h.problem(p, model.ProblemFile)
	if answers() {
		t.Error("after a start with it, the API of a refused file answers")
	}
	h.put("cli", "services: []")
	p.wait("answer as the file says, which is not refused any more", answers)
	p.stop()
}

// A start with a wrong or missing file continues with the version that ran.
func TestStartWithAWrongFileGoesOn(t *testing.T) {
	h := newHost(t)
	head := "director: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}"
	h.env = []string{"STATE_DIRECTORY=" + h.beside("state")} // what a file that is gone says is not known
	h.configure(head, "web", "other")
	h.start("director runs").kill()
	for name, text := range map[string]string{
		"an unknown key":  head + "\nspeed: 3\nservices: []\n",
		"no YAML":         head + "\nservices: [{name: web\n",
		"no interfaces":   "director: {store: {directory: " + h.beside("state") + "}}\nservices: []\n",
		"a wrong service": head + "\nservices: [{name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: dr, backends: []}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			h.write(text)
			p := h.start("director runs")
			if got := h.problem(p, model.ProblemFile); !strings.Contains(got.Text, h.file) || got.Severity != model.SeverityError {
				t.Errorf("the problem is %+v", got)
			}
			h.runs("with "+name, "web", "other")
			h.shownEverywhere(model.ProblemFile, h.file)
			p.kill()
		})
	}
	h.t = t
	if err := os.Remove(h.file); err != nil {
		t.Fatal(err)
	}
	p := h.start("director runs")
	if got := h.problem(p, model.ProblemFile); !strings.Contains(got.Text, "there is no "+h.file+" any more") || got.Fix != "put it back" {
		t.Errorf("without the file, the problem is %+v", got)
	}
	h.runs("without the file", "web", "other")
	p.wait("look for the file again", func() bool { return h.status().Refused != "" })
	if log := p.stderr.String(); strings.Contains(log, "problem is over") {
		t.Errorf("without the file, the log says that a problem is over:\n%s", log)
	}
	p.kill()
	h.configure(head, "web")
	p = h.start("director runs")
	h.resolvedNow(p)
	h.runs("with a file that is right", "web")
	p.stop()
}

// resolvedNow waits until nothing is wrong.
func (h *host) resolvedNow(p *process) {
	h.t.Helper()
	p.wait("have no problems", func() bool { return len(h.status().Problems) == 0 })
}

// The documented way into a group: start without etcd, apply an empty set, start with etcd and
// apply. The applied sets are forwarded.
func TestTheWayIntoAGroup(t *testing.T) {
	h := newHost(t)
	c := etcdlab.New(t, etcdlab.Options{Members: 1, On: h.Do})
	state := h.beside("state")
	h.write("director: {interfaces: [eth0], store: {directory: " + state + "}}\nservices: []\n")
	p := h.start("director runs")
	h.put("cli", appSet)
	h.put("cli", "services: []")
	p.stop()
	if _, err := os.Stat(filepath.Join(state, "cli.json")); err != nil {
		t.Fatal(err)
	}
	h.write("director: {interfaces: [eth0], store: {directory: " + state + ", etcd: {endpoints: [\"" + strings.Join(c.Endpoints, "\", \"") + "\"], prefix: " + c.Prefix + "}}}\nservices: []\n")
	p = h.start("director runs")
	h.put("cli", appSet)
	h.runs("applied", "app")
	p.kill()
	p = h.start("director runs")
	h.runs("started again", "app")
	h.resolvedNow(p)
	p.stop()
}

// A state directory that is full, has no inodes left, or has become read-only, is shown everywhere,
// even before anything is to be written; what runs keeps running, also across a start, and the file
// runs when it can be stored.
func TestStateCannotBeWritten(t *testing.T) {
	for name, test := range map[string]struct {
		idle          string // what is said before anything is to be written
		breaks, mends func(dir string) error
	}{
		"full": {
			"its file system is full",
			func(dir string) error {
				err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600)
				if !errors.Is(err, syscall.ENOSPC) {
					return fmt.Errorf("the disk is not full: %w", err)
				}
				return nil
			},
			func(dir string) error { return os.Remove(filepath.Join(dir, "filler")) },
		},
		"no inodes": {
			"its file system has no inode left",
			func(dir string) error {
				for i := 0; ; i++ {
					if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("filler%d", i)), nil, 0o600); errors.Is(err, syscall.ENOSPC) {
						return nil
					} else if err != nil {
						return err
					}
				}
			},
			func(dir string) error {
				fillers, err := filepath.Glob(filepath.Join(dir, "filler*"))
				for _, f := range fillers {
					err = errors.Join(err, os.Remove(f))
				}
				return err
			},
		},
		"read-only": {
			"read-only file system",
			func(dir string) error { // mounted on top: open files stay writable, and keep the mount from being made read-only in place
				return errors.Join(syscall.Mount(dir, dir, "", syscall.MS_BIND, ""),
					syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""))
			},
			func(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			dir := h.beside("state")
			do := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			do(os.Mkdir(dir, 0o700))
			do(syscall.Mount("state", dir, "tmpfs", 0, "size=256k,nr_inodes=60"))
			t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
			head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + dir + "}}"
			h.configure(head, "web")
			p := h.start("director runs")
			// Before anything is to be written, and beside what an operator has to look at.
			aside := filepath.Join(dir, "running.corrupt-1")
			do(os.WriteFile(aside, nil, 0o600))
			p.wait("list what was damaged", func() bool { return h.lists(model.ProblemStore, aside) })
			do(test.breaks(dir))
			p.wait("see that its state cannot be written", func() bool { return h.lists(model.ProblemHost, dir+" cannot be written: "+test.idle) })
			do(test.mends(dir))
			do(os.Remove(aside))
			h.resolvedEverywhere(p, model.ProblemStore)
			do(test.breaks(dir))
			if _, err := api.NewClient(h.socket).PutSet(t.Context(), "cli", api.SetText{Text: []byte(appSet)}, api.Condition{}); err == nil {
				t.Error("a set is taken that cannot be stored")
			}
			h.configure(head, "web", "mail")
			check := func(when string) {
				t.Helper()
				if got := h.problem(p, model.ProblemStore); got.Severity != model.SeverityError {
					t.Errorf("%s, the problem is %+v", when, got)
				}
				h.runs(when, "web")
			}
			check("broken")
			p.kill()
			p = h.start("director runs")
			check("started again")
			if out, status := h.exits("status", "--socket", h.socket); status != exitProblems || !strings.Contains(out, "store: ") {
				t.Errorf("weir status ends with %d:\n%s", status, out)
			}
			do(test.mends(dir))
			h.resolvedEverywhere(p, model.ProblemStore)
			h.runs("mended", "web", "mail")
			p.stop()
		})
	}
}

// So it is with an agent's state directory that turns read-only while nothing is to be written there.
func TestStateOfAnAgentCannotBeWritten(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("directors: [10.0.0.2]\nservices:\n- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: ipip, backends: [{address: 10.0.0.1}]}\n")
	p := h.startVerb("agent", `msg="agent runs"`)
	problems := func() []model.Problem {
		status, err := api.NewClient(h.socket).AgentStatus(t.Context())
		if err != nil {
			return []model.Problem{{Text: err.Error()}}
		}
		return status.Problems
	}
	dir := filepath.Join(h.Dir(), "state")
	p.wait("keep its file", func() bool {
		_, err := os.Stat(filepath.Join(dir, string(store.RunningAgent)))
		return err == nil && len(problems()) == 0
	})
	err := errors.Join(syscall.Mount(dir, dir, "", syscall.MS_BIND, ""), syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""))
	if err != nil {
		t.Fatal(err)
	}
	unmount := sync.OnceValue(func() error { return syscall.Unmount(dir, syscall.MNT_DETACH) })
	t.Cleanup(func() { _ = unmount() })
	p.wait("see that its state cannot be written", func() bool {
		found := problems()
		return len(found) == 1 && found[0].Kind == model.ProblemHost && found[0].Part == "state" && strings.Contains(found[0].Text, dir+" cannot be written: read-only file system")
	})
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	p.wait("see that it can be written", func() bool { return len(problems()) == 0 })
	p.stop()
}

// A file that the kernel refuses because its maps are too small is shown everywhere, and what ran
// keeps running, until a start makes larger maps.
func TestKernelRefuses(t *testing.T) {
	h := newHost(t)
	head := func(services string) string {
		return "coalesce: 1ms\ndirector: {interfaces: [eth0], limits: {services: " + services + "}, store: {directory: " + h.beside("state") + "}}"
	}
	h.configure(head("1"), "web")
	p := h.start("director runs")
	h.configure(head("9"), "web", "mail")
	h.problem(p, model.ProblemDatapath)
	h.shownEverywhere(model.ProblemDatapath, "limits.services")
	h.runs("refused", "web")
	p.kill()
	p = h.start("director runs")
	h.resolvedNow(p)
	h.runs("started again", "web", "mail")
	p.stop()
}

// A set that the kernel refuses is stored, and its owner is named until it runs.
func TestKernelRefusesASet(t *testing.T) {
	h := newHost(t)
	head := func(services string) string {
		return "coalesce: 1ms\ndirector: {interfaces: [eth0], limits: {services: " + services + "}, store: {directory: " + h.beside("state") + "}}"
	}
	h.configure(head("2"), "web")
	p := h.start("director runs")
	h.put("tenant", appSet)
	h.configure(head("9"), "web") // which takes effect at the next start
	h.problem(p, model.ProblemRestart)
	two := strings.Replace(appSet, "services: [", "services: [{name: more, vip: 203.0.113.11, protocol: tcp, port: 80, mode: l2dsr, backends: [{name: a, address: 10.0.0.2}]}, ", 1)
	_, err := api.NewClient(h.socket).PutSet(t.Context(), "tenant", api.SetText{Text: []byte(two)}, api.Condition{})
	if err == nil || !strings.Contains(err.Error(), "limits.services") {
		t.Errorf("a set that has no room is put, and the answer is %v", err)
	}
	if got := h.problem(p, model.ProblemDatapath); !strings.Contains(got.Text, `the set of owner "tenant" is stored`) {
		t.Errorf("the problem is %+v", got)
	}
	h.shownEverywhere(model.ProblemDatapath, "is stored and does not run")
	h.runs("refused", "web", "app")
	p.kill()
	p = h.start("director runs")
	h.resolvedNow(p)
	h.runs("with room", "web", "more", "app")
	p.stop()
}

func TestDirectorMountsBPFFS(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	mounted := filepath.Join(t.TempDir(), "bpf")
	h.bpffs = mounted
	t.Cleanup(func() {
		if err := unix.Unmount(mounted, 0); err != nil {
			t.Error("nothing was mounted:", err)
		}
	})
	h.start(`msg="director runs"`).stop()
	var fs unix.Statfs_t
	if err := unix.Statfs(h.bpffs, &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		t.Errorf("%s is no BPF file system (%v)", h.bpffs, err)
	}
	// A directory made on a BPF file system is on one already: nothing is mounted there, because
	// mounting takes rights that a container lacks.
	h.detach()
	h.bpffs = filepath.Join(mounted, "of-a-pod")
	h.start(`msg="director runs"`).stop()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), h.bpffs) {
		t.Errorf("%s is mounted by itself (%v)", h.bpffs, err)
	}
	if got := h.detach(); !strings.HasPrefix(got, "removed ") {
		t.Errorf("weir detach of %s says %q", h.bpffs, got)
	}
}

// A directory with files in it is not mounted over.
func TestNothingIsHiddenByBPFFS(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	h.bpffs = t.TempDir()
	file := filepath.Join(h.bpffs, "letter.txt")
	if err := os.WriteFile(file, []byte("dear"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"run", "agent"} {
		out, err := h.weir(verb, "-c", h.file, "--bpffs", h.bpffs, "--socket", h.socket).CombinedOutput()
		if err == nil || !strings.Contains(string(out), `has "letter.txt"`) {
			t.Errorf("weir %s says %q (%v)", verb, out, err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// A start that cannot take over what is pinned ends with an error that names the file system, why,
// and what to do; the program that the previous process left keeps running.
func TestStartWithoutBPFFS(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	agents := h.beside("agent.yaml")
	text := "agent: {interfaces: [eth0]}\ndirectors: [10.0.0.2]\nservices: [{name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: gue, backends: [{address: 10.0.0.1}]}]\n"
	if err := os.WriteFile(agents, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	h.start(`msg="director runs"`).kill()
	before := h.program()
	remount := func(flags uintptr) {
		t.Helper()
		h.onHost(func() error { return unix.Mount("", h.bpffs, "", unix.MS_REMOUNT|flags, "mode=0700") })
	}
	remount(unix.MS_RDONLY)
	for verb, file := range map[string]string{"run": h.file, "agent": agents} {
		got := h.fails(verb, "-c", file, "--bpffs", h.bpffs, "--socket", h.beside(verb+".sock"))
		for _, words := range []string{"take over what is pinned in " + h.bpffs, "mount -o remount,rw " + h.bpffs, "goes on"} {
			if !strings.Contains(got, words) {
				t.Errorf("weir %s says %q, and not %q", verb, got, words)
			}
		}
	}
	if now := h.program(); now != before || now == 0 {
		t.Errorf("eth0 has program %d, and had %d", now, before)
	}
	remount(0)
	h.start(`msg="director runs"`).stop()
	if now := h.program(); now != before {
		t.Errorf("eth0 has program %d after a start, and had %d", now, before)
	}
}
