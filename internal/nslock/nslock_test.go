package nslock

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/netlab"
)

// taken is what the other process of the test says when it has the lock.
const taken = "taken"

func TestMain(m *testing.M) {
	if os.Getenv("WEIR_NSLOCK_TEST") != "" { // the other process: it holds the lock until it is killed
		if _, err := Take("test"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(taken)
		select {}
	}
	os.Exit(m.Run())
}

// Another process in the same network namespace is named, whatever file systems it has; in another
// namespace there is none; and its end frees the lock.
func TestOneProcessOfANamespace(t *testing.T) {
	lab := netlab.ForTest(t)
	here, there := lab.Host("here"), lab.Host("there")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var other *exec.Cmd
	do := func(h *netlab.Host, f func() error) {
		t.Helper()
		if err := h.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	do(here, func() error {
		other = exec.Command(self)
		other.Env = append(os.Environ(), "WEIR_NSLOCK_TEST=1")
		other.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		out, err := other.StdoutPipe()
		if err != nil {
			return err
		}
		if err := other.Start(); err != nil {
			return err
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != taken {
			return fmt.Errorf("the other process says %q (%v)", line, err)
		}
		return nil
	})
	for range 3 {
		do(here, func() error {
			_, err := Take("test")
			var held *HeldError
			if !errors.As(err, &held) || held.Process != other.Process.Pid || held.Command == "" || held.Foreign() {
				return fmt.Errorf("the lock is taken, or its holder is another than %d: %w", other.Process.Pid, err)
			}
			return nil
		})
	}
	free := func() error {
		l, err := Take("test")
		return errors.Join(err, l.Close(), l.Close())
	}
	do(there, free)
	do(here, func() error {
		l, err := Take("another name")
		return errors.Join(err, l.Close())
	})
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // it was killed
	do(here, free)
	do(here, free)
}

// A process that has the name and does not listen yet, or no longer, holds the lock unless it ends
// soon.
func TestHolderThatDoesNotListen(t *testing.T) {
	lab := netlab.ForTest(t)
	err := lab.Host("here").Do(func() error {
		socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Bind(socket, &unix.SockaddrUnix{Name: "@weir/test"}); err != nil {
			return err
		}
		_, err = take("test", func() {})
		var held *HeldError
		if !errors.As(err, &held) || held.Process != os.Getpid() || held.Command == "" || held.Foreign() {
			t.Errorf("the lock is taken, or its holder is another than %d: %v", os.Getpid(), err)
		}
		ends := sync.OnceFunc(func() { _ = unix.Close(socket) })
		l, err := take("test", ends)
		return errors.Join(err, l.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A process of another user may have the name, and is told from one that does weir's work.
func TestOtherUsersHoldNothing(t *testing.T) {
	for user, foreign := range map[uint32]bool{0: false, uint32(os.Geteuid()): false, 12345: true} {
		if got := (&HeldError{Process: 1, User: user}).Foreign(); got != foreign {
			t.Errorf("a process of user %d is foreign: %v, want %v", user, got, foreign)
		}
	}
}
