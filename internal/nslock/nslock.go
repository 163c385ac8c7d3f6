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
	"strings"

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

// Take takes the lock of that name in the network namespace of the calling thread. If another process
// has it, the error is a *HeldError.
func Take(name string) (*Lock, error) {
	address := &net.UnixAddr{Net: "unix", Name: "@weir/" + name}
	socket, err := net.ListenUnix("unix", address)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, holder(address)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	go func() {
		for { // those who ask get their answer from the kernel
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	return &Lock{socket}, nil
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
	held := &HeldError{Process: int(credentials.Pid), User: credentials.Uid}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", held.Process)); err == nil {
		held.Command = strings.TrimSpace(string(text))
	}
	return held
}
