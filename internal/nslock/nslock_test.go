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

	"weir.io/weir/lab/netlab"
)

// taken is what the other process of the test says when it has the lock.
const taken = "taken"

func TestMain(m *testing.M) {
	if os.Getenv("WEIR_NSLOCK_TEST") != "" { // the other process: it holds the lock until it is killed
		if _, err := Acquire("test"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(taken)
		select {}
	}
	os.Exit(m.Run())
}

// holds starts another process in a host's network namespace, which holds the lock until the test ends.
func holds(t *testing.T, h *netlab.Host, as syscall.SysProcAttr, wrapped ...string) *exec.Cmd {
	t.Helper()
	args := append(wrapped, "/proc/self/exe") // every user may start it, whatever directory it is in
	if len(wrapped) > 0 {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		args[len(wrapped)] = self
	}
	as.Pdeathsig = syscall.SIGKILL
	other := exec.Command(args[0], args[1:]...)
	other.Env, other.SysProcAttr, other.Stderr = append(os.Environ(), "WEIR_NSLOCK_TEST=1"), &as, os.Stderr
	err := h.Do(func() error {
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
	t.Cleanup(func() { ends(t, other) })
	if err != nil {
		t.Fatal(err)
	}
	return other
}

func ends(t *testing.T, other *exec.Cmd) {
	t.Helper()
	if other.ProcessState != nil || other.Process == nil {
		return
	}
	if err := other.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = other.Wait() // it was killed
}

// heldOn is the process that holds the lock on a host.
func heldOn(t *testing.T, h *netlab.Host) *HeldError {
	t.Helper()
	held := &HeldError{}
	err := h.Do(func() error {
		l, err := Acquire("test")
		if !errors.As(err, &held) {
			return fmt.Errorf("the lock is taken: %w", errors.Join(err, l.Close()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// Another process in the same network namespace is named, whatever file systems it has; in another
// namespace there is none; and its end frees the lock.
func TestOneProcessOfANamespace(t *testing.T) {
	lab := netlab.ForTest(t)
	here, there := lab.Host("here"), lab.Host("there")
	do := func(h *netlab.Host, f func() error) {
		t.Helper()
		if err := h.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	other := holds(t, here, syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
	for range 3 {
		if held := heldOn(t, here); held.Process != other.Process.Pid || held.Command == "" || held.Foreign() {
			t.Errorf("its holder is another than %d: %+v", other.Process.Pid, held)
		}
	}
	free := func() error {
		l, err := Acquire("test")
		return errors.Join(err, l.Close(), l.Close())
	}
	do(there, free)
	do(here, func() error {
		l, err := Acquire("another name")
		return errors.Join(err, l.Close())
	})
	ends(t, other)
	do(here, free)
	do(here, free)
}

// Whether a process can do weir's work is decided by what it may do, not by its user: an ordinary user
// may be a director, and root of a container may be a stranger. A stranger is named, too.
func TestStrangersHoldNothing(t *testing.T) {
	user := &syscall.Credential{Uid: 12345, Gid: 12345}
	only := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 12345, Size: 1}}
	for name, row := range map[string]struct {
		as      syscall.SysProcAttr
		wrapped []string
		foreign bool
	}{
		"root":                {},
		"a user":              {as: syscall.SysProcAttr{Credential: user}, foreign: true},
		"a user's weir":       {as: syscall.SysProcAttr{Credential: user, AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}}},
		"a user's root":       {as: syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: only, GidMappings: only, Credential: &syscall.Credential{}}, foreign: true},
		"root of a container": {wrapped: []string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-all"}, foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			here := netlab.ForTest(t).Host("here")
			other := holds(t, here, row.as, row.wrapped...)
			held := heldOn(t, here)
			if held.Foreign() != row.foreign {
				t.Errorf("it is foreign: %v, want %v", held.Foreign(), row.foreign)
			}
			if text := held.Error(); !strings.HasPrefix(text, fmt.Sprintf("process %d (", other.Process.Pid)) || !strings.Contains(text, "@weir/test") {
				t.Errorf("it is told that %s, and it is process %d", text, other.Process.Pid)
			}
		})
	}
}

// A lock that could not be taken is said, and taken as soon as it is free.
func TestLockIsTakenLater(t *testing.T) {
	here := netlab.ForTest(t).Host("here")
	other := holds(t, here, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}})
	err := here.Do(func() error {
		l, err := Acquire("test")
		if err == nil {
			return errors.New("it is taken")
		}
		for _, free := range []bool{false, true} {
			if free {
				ends(t, other)
			}
			found, err := l.Part().Look()
			if err != nil || len(found) != 1 {
				return fmt.Errorf("the part differs by %v (%w)", found, err)
			}
			switch err := found[0].Repair(); {
			case free && err != nil:
				return err
			case !free && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", other.Process.Pid))):
				return fmt.Errorf("it is said that %w", err)
			}
		}
		if found, err := l.Part().Look(); err != nil || len(found) != 0 {
			return fmt.Errorf("then the part differs by %v (%w)", found, err)
		}
		if held := heldOn(t, here); held.Process != os.Getpid() {
			t.Errorf("the holder is %+v", held)
		}
		return l.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
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
		_, err = acquire("test", func() {})
		var held *HeldError
		if !errors.As(err, &held) || held.Process != os.Getpid() || held.Command == "" || held.Foreign() {
			t.Errorf("the lock is taken, or its holder is another than %d: %v", os.Getpid(), err)
		}
		ends := sync.OnceFunc(func() { _ = unix.Close(socket) })
		l, err := acquire("test", ends)
		return errors.Join(err, l.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
}
