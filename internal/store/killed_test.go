package store

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
)

// toBeKilled names the directory in which this process is to make a change.
const toBeKilled = "WEIR_STORE_KILLED_IN"

// between are the system calls before each of which the writer is killed: all that open,
// write, sync, rename or remove a file.
var between = []string{"openat", "write", "fsync", "/^rename", "/^unlink"}

func oldSet() Change { return Replace("cli", []model.Service{service("a", 1, 1)}, count) }

func newSet() Change {
	return Replace("cli", []model.Service{service("a", 1, 2), service("b", 2, 1)}, count)
}

// toBeKilledNow makes a change, in a process of its own: it is killed meanwhile, or ends.
func toBeKilledNow(dir string) {
	runtime.LockOSThread() // strace counts the calls of each thread
	f, err := OpenFile(dir)
	if err == nil {
		_, err = f.Update(context.Background(), newSet())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// kill -9 before any system call of a change leaves the old set or the new one, and the
// next process opens it: each call of each kind in turn, until one is not reached any more.
func TestKillLeavesOldOrNew(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, dir)
	old := update(t, f, oldSet())
	latest := update(t, f, newSet())
	f.Close()
	seen := map[string]int{}
	for _, calls := range between {
		for n := 1; ; n++ {
			dir := t.TempDir()
			f := openFile(t, dir)
			update(t, f, oldSet())
			f.Close()
			killed := killAt(t, dir, calls, n)
			f = openFile(t, dir)
			got := read(t, f)
			f.Close()
			switch {
			case difference(old, got) == "":
				seen["old"]++
			case difference(latest, got) == "":
				seen["new"]++
			default:
				t.Fatalf("killed before %s number %d it leaves neither the old nor the new set:\n%s", calls, n, difference(latest, got))
			}
			if left, _ := filepath.Glob(filepath.Join(dir, temporary+"*")); len(left) > 0 {
				t.Errorf("killed before %s number %d: unfinished files stay: %q", calls, n, left)
			}
			if !killed {
				break
			}
			seen[calls]++
		}
	}
	t.Logf("killed before so many calls, with so many old and new sets: %v", seen)
	if seen["old"] == 0 || seen["new"] <= len(between) || seen["fsync"] < 2 || seen["/^rename"] < 1 {
		t.Errorf("the writer was not killed between its writes: %v", seen)
	}
}

// killAt runs the writer, which is killed before its n-th system call of a kind; false: it
// has not as many.
func killAt(t *testing.T, dir, calls string, n int) (killed bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace="+calls,
		"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", calls, n), self)
	cmd.Env = append(os.Environ(), toBeKilled+"="+dir, "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	status, is := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !is || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("strace, which shows how the writer ended, says %v:\n%s", err, out)
	}
	return true
}
