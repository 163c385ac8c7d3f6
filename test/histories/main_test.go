// Package histories runs the real programs of directors and of hosts through random histories
// together, packet by packet, beside the twin of both.
package histories

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// insideVariable holds the number of the process that has entered namespaces of its own.
const insideVariable = "WEIR_TEST_HISTORIES_INSIDE"

// The directors work in the network namespace of this process, so it gets its own. So does a
// fuzzer's worker, which keeps the files that it was given.
func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) == strconv.Itoa(os.Getpid()) {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, "enter namespaces:", enter())
	os.Exit(1)
}

// enter starts this program again, as the same process, in namespaces of its own.
func enter() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		return err
	}
	inside := append(os.Environ(), insideVariable+"="+strconv.Itoa(os.Getpid()))
	return syscall.Exec("/proc/self/exe", os.Args, inside)
}
