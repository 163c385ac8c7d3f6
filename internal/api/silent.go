package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// ErrSilent matches errors that say that a process has a socket, but does not answer on it.
var ErrSilent = errors.New("it does not answer")

// silentError says which process does not answer.
type silentError struct {
	process int32 // 0: not known
	stopped bool
	within  time.Duration
}

// Error names the process, so that it can be examined.
func (e *silentError) Error() string {
	switch {
	case e.stopped:
		return fmt.Sprintf("process %d has this socket and is stopped, so that it answers nothing: kill -CONT %d lets it go on", e.process, e.process)
	case e.process > 0:
		return fmt.Sprintf("process %d has this socket and has not answered within %v", e.process, e.within)
	}
	return fmt.Sprintf("nobody has answered within %v", e.within)
}

// Is is true of ErrSilent.
func (*silentError) Is(target error) bool { return target == ErrSilent }

// stoppedEvery is how often a client that waits for an answer checks whether there can be one.
const stoppedEvery = time.Second

// patience returns a context that ends when no answer can be expected any more: at once if the
// process that has the socket is stopped, else after a while. Its cause says why. A stream may take
// any time once its answer has begun, and calls answered then.
func (c *Client) patience(ctx context.Context, within time.Duration) (patient context.Context, answered, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	began := time.Now()
	var endless atomic.Bool
	look := time.NewTicker(stoppedEvery)
	go func() {
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			silent := &silentError{process: c.process(), within: within}
			if silent.stopped = isStopped(silent.process); silent.stopped || !endless.Load() && time.Since(began) >= within {
				cancel(silent)
				return
			}
		}
	}()
	return ctx, func() { endless.Store(true) }, func() { cancel(nil) }
}

func (c *Client) process() int32 {
	if c.peer == nil {
		return 0
	}
	return c.peer.Load()
}

// silence returns why a context of patience ended, if that caused an error.
func silence(ctx context.Context, err error) error {
	var silent *silentError
	if errors.As(context.Cause(ctx), &silent) {
		return silent
	}
	return err
}

// readError says why an answer could not be read.
func (c *Client) readError(what string, err error) error {
	var other *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, ErrSilent):
		return c.connectError(err)
	case errors.As(err, &other), errors.As(err, &syntax):
		return unreachableError{fmt.Errorf("%s answers about %s, and not as a weir director or agent does (%w)", c.where, what, err)}
	}
	return fmt.Errorf("read the answer about %s: %w", what, err)
}

// isStopped reports whether a process is stopped, by a signal or a debugger (proc_pid_stat(5)).
func isStopped(pid int32) bool {
	if pid == 0 {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, found := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(") "))
	return found && len(after) > 0 && (after[0] == 'T' || after[0] == 't')
}
