package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

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
