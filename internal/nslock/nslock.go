// Package nslock lets one process at a time do something in a network namespace. Locks of files do
// not see that: processes of one network namespace may have different file systems.
//
// A lock is an abstract unix socket (unix(7)). Each network namespace has names of its own, and the
// kernel frees a name when its process ends, however that ends. Every user can take such a name, so a
// process that could not do weir's work does not count as a holder.
package nslock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/upkeep"
)

// Lock is held until Close, or the end of the process, once it is taken.
type Lock struct {
	address *net.UnixAddr

	mu     sync.Mutex
	socket net.Listener // nil: it is not taken
	closed bool
	silent error // which process has the name without listening, if it was looked for
}

// A process that has the name and takes no connection is beginning or ending: the name is tried again.
const (
	attempts = 50
	pause    = 10 * time.Millisecond
)

// errSilent says that another process has the name and takes no connection.
var errSilent = errors.New("the process that has the name does not answer")

// Acquire acquires the lock of that name in the network namespace of the calling thread. If another process
// has it, the error is a *HeldError. A lock that could not be acquired is returned, too: see Part.
func Acquire(name string) (*Lock, error) {
	return acquire(name, func() { time.Sleep(pause) })
}

// acquire waits between two attempts by a function.
func acquire(name string, wait func()) (*Lock, error) {
	l := &Lock{address: &net.UnixAddr{Net: "unix", Name: "@weir/" + name}}
	for range attempts {
		err := l.try()
		if !errors.Is(err, errSilent) {
			return l, err
		}
		wait()
	}
	l.silent = binder(l.address.Name)
	return l, l.silent
}

// try acquires the lock if no process has it.
func (l *Lock) try() error {
	socket, err := net.ListenUnix("unix", l.address)
	if err == nil {
		go answer(socket)
		l.socket = socket
		return nil
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("lock the network namespace: %w", err)
	}
	err = holder(l.address)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN) {
		return errSilent
	}
	return err
}

// again tries once more to acquire a lock that could not be acquired.
func (l *Lock) again() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket != nil || l.closed {
		return nil
	}
	err := l.try()
	if !errors.Is(err, errSilent) {
		l.silent = nil
		return err
	}
	if l.silent == nil { // once: all processes' files are read for it
		l.silent = binder(l.address.Name)
	}
	return l.silent
}

// Part is the part of the host that the lock is: one that could not be acquired is tried again. Its
// looks are made in the network namespace of the lock.
func (l *Lock) Part() upkeep.Part {
	return upkeep.Part{Name: upkeep.Lock, Look: func() ([]upkeep.Difference, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.socket != nil || l.closed {
			return nil, nil
		}
		return []upkeep.Difference{{What: l.address.Name, Found: "is not held, so a second process would not be kept out of this network namespace", Repair: l.again}}, nil
	}}
}

// answer takes connections until the lock is freed: processes that ask get their answer
// from the kernel.
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
	l.mu.Lock()
	defer l.mu.Unlock()
	socket := l.socket
	l.socket, l.closed = nil, true
	if socket == nil {
		return nil
	}
	return socket.Close()
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
	return heldBy(address.Name, int(credentials.Pid), credentials.Uid)
}

// binder finds the process that has bound a name without listening there, by its files: the kernel
// tells nothing about it by the name. One that is not found may do weir's work.
func binder(name string) *HeldError {
	text, _ := os.ReadFile("/proc/thread-self/net/unix") // proc(5): of the thread's network namespace
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 8 && fields[7] == name {
			if held := opener(name, "socket:["+fields[6]+"]"); held != nil {
				return held
			}
		}
	}
	return &HeldError{Name: name, Able: true}
}

// opener returns a process that has a socket open; nil: none is found.
func opener(name, socket string) *HeldError {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, file := range files {
		if target, err := os.Readlink(file); err != nil || target != socket {
			continue
		}
		process := filepath.Dir(filepath.Dir(file))
		var stat unix.Stat_t
		number, err := strconv.Atoi(filepath.Base(process))
		if errors.Join(err, unix.Stat(process, &stat)) == nil {
			return heldBy(name, number, stat.Uid)
		}
	}
	return nil
}

// HeldError says which process has a lock.
type HeldError struct {
	Name    string // of the abstract unix socket: "@weir/agent"
	Process int    // its number; 0: it is in another PID namespace, or is not found
	Command string // its name; empty: not known
	User    uint32
	// Able says whether the process may change this network namespace, as far as is known: it can be
	// one of weir's.
	Able bool
}

// Error names the process.
func (e *HeldError) Error() string {
	holder := fmt.Sprintf("process %d (%s) of user %d", e.Process, e.Command, e.User)
	switch {
	case e.Process == 0:
		holder = fmt.Sprintf("a process of another PID namespace, of user %d,", e.User)
	case e.Command == "":
		holder = fmt.Sprintf("process %d of user %d", e.Process, e.User)
	}
	text := holder + " holds " + e.Name + " in this network namespace"
	if !e.Able {
		text += ", and is none of weir's: it may not change the network"
	}
	return text
}

// Foreign reports whether the process could not do weir's work: it has only taken the name.
func (e *HeldError) Foreign() bool { return !e.Able }

// heldBy describes a holder.
func heldBy(name string, process int, user uint32) *HeldError {
	held := &HeldError{Name: name, Process: process, User: user}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", process)); err == nil {
		held.Command = strings.TrimSpace(string(text))
	}
	able, known := mayChangeNetwork(process)
	if !known { // it is in another PID namespace, or /proc hides it (hidepid)
		able = user == 0 || user == uint32(os.Geteuid())
	}
	held.Able = able
	return held
}

// mayChangeNetwork reports whether a process has CAP_NET_ADMIN, without which none of weir's processes
// that take locks works. The same capability in a user namespace of its own, as root of a container
// without privileges has it, is none.
func mayChangeNetwork(process int) (able, known bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process))
	if err != nil {
		return false, false
	}
	for line := range strings.Lines(string(status)) {
		if text, is := strings.CutPrefix(line, "CapEff:"); is {
			effective, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return effective&(1<<unix.CAP_NET_ADMIN) != 0 && sameUserNamespace(process), err == nil
		}
	}
	return false, false
}

// sameUserNamespace compares the user namespaces of a process and this one by their maps of
// users: everybody may read these, while the link to the namespace takes CAP_SYS_PTRACE. A
// process without privileges that makes a user namespace cannot give it the map of another one.
func sameUserNamespace(process int) bool {
	its, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", process))
	if err != nil {
		return true // else a second director could go unnoticed
	}
	own, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || string(own) == string(its)
}
