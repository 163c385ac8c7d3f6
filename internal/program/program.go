// Package program runs programs that the configuration names, such as hooks and health checks: without a
// shell, for a limited time, and with all that they start in a process group of their own.
package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mostSaid is how much of a program's output is kept, in bytes.
const mostSaid = 1024

// Program is a program and how it is run.
type Program struct {
	Argv  []string            // the program, by its path from the root, and its arguments
	Dir   string              // where it begins; empty: where this process is
	Stdin []byte              // nil: nothing can be read
	Env   []string            // all of its environment; empty: none
	As    *syscall.Credential // nil: this process's own user. Ending another one's processes takes CAP_KILL
	// Capabilities are what it gets of this process's, by their numbers: [privilege.Give].
	Capabilities []uintptr
	// Limits are set when the program has begun: what it does in its first moment is not limited.
	Limits map[int]uint64
	// Alone ends all that the program has started, and has left in its process group, when it ends.
	Alone bool
}

// StartError says that a program could not be run: it says nothing about what the program does.
type StartError struct{ Err error }

// Error returns why.
func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// Run runs the program, and returns the beginning of what it has written. When the context ends, the program
// is killed with all its children that have stayed in its process group. An error is a *StartError, or how
// the program has ended.
func (p *Program) Run(ctx context.Context) (said string, err error) {
	output := &beginning{}
	cmd := exec.CommandContext(ctx, p.Argv[0], p.Argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = output, output, p.Env, p.Dir
	if p.Stdin != nil {
		cmd.Stdin = bytes.NewReader(p.Stdin)
	}
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would be this process's
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.As, AmbientCaps: p.Capabilities}
	group := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = group
	cmd.WaitDelay = time.Second // processes that it leaves behind may keep its output open
	if err := cmd.Start(); err != nil {
		return "", &StartError{fmt.Errorf("run %s: %w", p.Argv[0], reason(err))}
	}
	limited := p.limit(cmd.Process.Pid)
	if limited != nil {
		_ = group()
	}
	if p.Alone {
		// The number stays the group's until the program is waited for.
		for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		_ = group()
	}
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it need not end the processes that it has started
	}
	if limited != nil {
		return "", &StartError{limited}
	}
	return strings.ToValidUTF8(string(output.text), "?"), err
}

// limit sets the limits. Those of another user's processes take CAP_SYS_RESOURCE, without which they are not
// limited: requirements say so.
func (p *Program) limit(pid int) error {
	for what, most := range p.Limits {
		err := unix.Prlimit(pid, what, &unix.Rlimit{Cur: most, Max: most}, nil)
		if err == unix.EPERM && p.As != nil {
			return nil
		}
		if err != nil && err != unix.ESRCH {
			return fmt.Errorf("limit what %s may use: %w", p.Argv[0], err)
		}
	}
	return nil
}

// reason returns why a program was not started, without its path.
func reason(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// beginning keeps the beginning of what is written to it.
type beginning struct{ text []byte }

// Write never fails: a program does not end because it writes too much.
func (b *beginning) Write(text []byte) (int, error) {
	b.text = append(b.text, text[:min(len(text), mostSaid-len(b.text))]...)
	return len(text), nil
}
