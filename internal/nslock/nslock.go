// Package nslock lets one process at a time do something in a network namespace. Locks of files do
// not see that: processes of one network namespace may have different file systems.
//
// A lock is an abstract unix socket (unix(7)). Each network namespace has names of its own, and the
// kernel frees a name when its process ends, however that ends. Every user can take such a name, so a
// process of a user who could not do weir's work does not count as a holder.
package nslock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is held until Close, or the end of the process.
type Lock struct{ socket net.Listener }

// HeldError says which process has a lock.
type HeldError struct {
	Process int    // its number; 0: it is in another PID namespace
	Command string // its name; empty: not known
	User    uint32
}

// Error names the process.
func (e *HeldError) Error() string {
	switch {
	case e.Process == 0:
		return "a process of another PID namespace works in this network namespace"
	case e.Command == "":
		return fmt.Sprintf("process %d works in this network namespace", e.Process)
	}
	return fmt.Sprintf("process %d (%s) works in this network namespace", e.Process, e.Command)
}

// Foreign reports whether the process is of a user who is neither root nor this process's user: such
// a process has only taken the name.
func (e *HeldError) Foreign() bool { return e.User != 0 && e.User != uint32(os.Geteuid()) }

// A process that has the name and takes no connection is beginning or ending: the name is tried again.
const (
	attempts = 50
	pause    = 10 * time.Millisecond
)

// Take takes the lock of that name in the network namespace of the calling thread. If another process
// has it, the error is a *HeldError.
func Take(name string) (*Lock, error) {
	return take(name, func() { time.Sleep(pause) })
}

// take waits between two attempts by a function.
func take(name string, wait func()) (*Lock, error) {
	address := &net.UnixAddr{Net: "unix", Name: "@weir/" + name}
	for range attempts {
		socket, err := net.ListenUnix("unix", address)
		if err == nil {
			go answer(socket)
			return &Lock{socket}, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("lock the network namespace: %w", err)
		}
		if err := holder(address); !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		wait()
	}
	return nil, binder(address.Name)
}

// answer takes connections until the lock is freed: those who ask get their answer from the kernel.
func answer(socket net.Listener) {
	for {
		conn, err := socket.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(pause) // the process may have no file descriptor left
			continue
		}
		conn.Close()
	}
}

// Close frees the lock. It may be called on nil, and more than once.
func (l *Lock) Close() error {
	if l == nil {
		return nil
	}
	if err := l.socket.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// holder asks the kernel which process has taken the name.
func holder(address *net.UnixAddr) error {
	conn, err := net.DialUnix("unix", nil, address)
	if err != nil {
		return fmt.Errorf("lock the network namespace: another process has %s, and it is not known which: %w", address.Name, err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("lock the network namespace: %w", err)
	}
	var credentials *unix.Ucred
	control := raw.Control(func(fd uintptr) { credentials, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(control, err); err != nil {
		return fmt.Errorf("lock the network namespace: %w", err)
	}
	return heldBy(int(credentials.Pid), credentials.Uid)
}

func heldBy(process int, user uint32) *HeldError {
	held := &HeldError{Process: process, User: user}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", process)); err == nil {
		held.Command = strings.TrimSpace(string(text))
	}
	return held
}

// binder finds the process that has bound a name without listening there, by its files: the kernel
// tells nothing about it by the name. One that is not found may do weir's work.
func binder(name string) *HeldError {
	text, _ := os.ReadFile("/proc/thread-self/net/unix") // proc(5): of the thread's network namespace
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 8 && fields[7] == name {
			if held := opener("socket:[" + fields[6] + "]"); held != nil {
				return held
			}
		}
	}
	return &HeldError{}
}

// opener returns a process that has a socket open; nil: none is found.
func opener(socket string) *HeldError {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, file := range files {
		if target, err := os.Readlink(file); err != nil || target != socket {
			continue
		}
		process := filepath.Dir(filepath.Dir(file))
		var stat unix.Stat_t
		number, err := strconv.Atoi(filepath.Base(process))
		if errors.Join(err, unix.Stat(process, &stat)) == nil {
			return heldBy(number, stat.Uid)
		}
	}
	return nil
}
