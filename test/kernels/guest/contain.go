package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// contain makes the machine of namespaces on this host's kernel, in which this process is the first, and
// goes on as systemd there. In dir are the tests, and the port as a pipe. It returns only errors.
func contain(dir string) error {
	box := filepath.Join(dir, "box")
	hostRoot = filepath.Join(box, "root")
	at := func(path string) string { return filepath.Join(hostRoot, path) }
	if err := os.Mkdir(box, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	if err := unix.Mount("tmpfs", box, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount memory for what is written: %w", err)
	}
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(box, name), 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=/,upperdir=%[1]s/upper,workdir=%[1]s/work", box)
	if err := unix.Mount("overlay", hostRoot, "overlay", 0, layers); err != nil {
		return fmt.Errorf("mount what is written over the host's files: %w", err)
	}
	for _, m := range [][3]string{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"},
		{"tmpfs", "/dev"}, {"devpts", "/dev/pts", "newinstance,ptmxmode=666"}, {"tmpfs", "/dev/shm"},
		{"cgroup2", "/sys/fs/cgroup"}, {"bpf", "/sys/fs/bpf", "mode=700"}, // as systemd mounts it
	} {
		if err := os.MkdirAll(at(m[1]), 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m[0], at(m[1]), m[0], 0, m[2]); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	if err := os.Symlink("pts/ptmx", at("/dev/ptmx")); err != nil {
		return err
	}
	for place, from := range map[string]string{
		"/dev/null": "/dev/null", "/dev/zero": "/dev/zero", "/dev/full": "/dev/full", "/dev/random": "/dev/random",
		"/dev/urandom": "/dev/urandom", "/dev/tty": "/dev/tty", "/dev/ttyS1": filepath.Join(dir, "port"),
	} {
		if err := os.WriteFile(at(place), nil, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(from, at(place), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", place, err)
		}
	}
	// These are the whole host's.
	masked = append(masked, "systemd-sysctl.service", "systemd-hostnamed.service")
	tests, err := filepath.Glob(filepath.Join(dir, "tests", "*"))
	if err != nil || len(tests) != 1 {
		return fmt.Errorf("there are %d tests, not one: %w", len(tests), err)
	}
	return becomeSystemd(tests[0], "container=namespaces")
}
