package netlab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	namePrefix   = "weir-"
	namespaceDir = "/run/netns"
	stateDir     = "/run/weir-lab"
)

// Sweep removes the labs of processes that are dead: what a process leaves that
// was killed before it could close its lab. One process sweeps at a time, so that
// nothing of those labs is left when Sweep returns, also where another process began
// to remove it.
func Sweep() (err error) {
	unlock, err := lockState()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	entries := append(names(namespaceDir), names(stateDir)...)
	var dead []string
	labs.Lock()
	defer labs.Unlock()
	for _, name := range entries {
		prefix, pid, ok := parseName(name)
		if !ok || slices.Contains(dead, prefix) || labs.open[prefix] != nil {
			continue
		}
		// A lab under our own number that is not open belonged to an earlier
		// process that had the number.
		if pid == os.Getpid() || unix.Kill(pid, 0) == unix.ESRCH {
			dead = append(dead, prefix)
		}
	}
	return remove(dead)
}

// lockState waits until no other process sweeps.
func lockState() (unlock func() error, err error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the labs' directory: %w", err)
	}
	dir, err := os.Open(stateDir)
	if err != nil {
		return nil, fmt.Errorf("open the labs' directory: %w", err)
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX)
		if err == nil {
			return dir.Close, nil
		}
		if err != unix.EINTR {
			dir.Close()
			return nil, fmt.Errorf("lock the labs' directory: %w", err)
		}
	}
}

// names returns the names in a directory; none when it is not there.
func names(dir string) []string {
	entries, _ := os.ReadDir(dir)
	list := make([]string, len(entries))
	for i, entry := range entries {
		list[i] = entry.Name()
	}
	return list
}

// parseName splits weir-PID.N-HOST, or what of it there is, into the lab's prefix
// and the process.
func parseName(name string) (prefix string, pid int, ok bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return "", 0, false
	}
	lab, _, _ := strings.Cut(rest, "-")
	number, _, _ := strings.Cut(lab, ".")
	pid, err := strconv.Atoi(number)
	return namePrefix + lab, pid, err == nil && pid > 0
}

// remove removes the labs with those prefixes: processes first, because they hold
// namespaces and mounts.
func remove(prefixes []string) error {
	var namespaces []string
	for _, name := range names(namespaceDir) {
		if prefix, _, ok := parseName(name); ok && slices.Contains(prefixes, prefix) {
			namespaces = append(namespaces, name)
		}
	}
	var errs []error
	paths := make([]string, len(namespaces))
	for i, name := range namespaces {
		paths[i] = filepath.Join(namespaceDir, name)
	}
	if err := killIn(paths); err != nil {
		errs = append(errs, err)
	}
	for _, prefix := range prefixes {
		errs = append(errs, removeDir(filepath.Join(stateDir, prefix)))
	}
	for i, name := range namespaces {
		err := netns.DeleteNamed(name)
		if errors.Is(err, unix.EINVAL) { // made, but not mounted yet when its maker died
			err = os.Remove(paths[i])
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another lab that begins has
			errs = append(errs, fmt.Errorf("remove network namespace %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// removeDir unmounts the hosts' BPF file systems and removes a lab's files.
func removeDir(dir string) error {
	for _, host := range names(dir) {
		mount := filepath.Join(dir, host, "bpf")
		err := unix.Unmount(mount, unix.MNT_DETACH)
		if err != nil && err != unix.EINVAL && err != unix.ENOENT { // not mounted, never made
			return fmt.Errorf("unmount %s: %w", mount, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the lab's directory: %w", err)
	}
	return nil
}
