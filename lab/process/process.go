// Package process runs weir and the programs that it is measured with on the hosts of a lab: it
// waits until they are ready, and reads which resources they use.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"weir.io/weir/lab/netlab"
)

// ErrEnded says that a process has ended without being told to.
var ErrEnded = errors.New("process ended by itself")

// patience bounds the wait for a process to be ready: long enough for the largest
// configuration on a busy machine.
const patience = 3 * time.Minute

// Process is a program that runs on a host. Closing the lab kills it.
type Process struct {
	Host    *netlab.Host
	Name    string
	Started time.Time

	cmd  *netlab.Command
	log  string // file with what it prints
	done chan struct{}
}

// Start starts a program on a host. Its output is kept for errors; name also distinguishes it from
// the host's other processes.
func Start(host *netlab.Host, name, program string, args ...string) (*Process, error) {
	p := &Process{Host: host, Name: name, log: filepath.Join(host.Dir(), name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("make log of %s: %w", name, err)
	}
	defer log.Close()
	p.cmd = host.Command(context.Background(), program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.Started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", name, host.Name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is in its log
	}()
	return p, nil
}

// PID returns the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns all that the process has printed.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Await asks until nothing is wrong any more. The error is the last thing that was wrong, or
// ErrEnded, both with the end of the log.
func (p *Process) Await(ctx context.Context, what string, wrong func() error) error {
	for deadline := time.Now().Add(patience); ; {
		err := wrong()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return p.Ended()
		case <-time.After(2 * time.Millisecond): // between two looks
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s on %s does not %s: %w; its log ends with:\n%s", p.Name, p.Host.Name, what, err, p.tail())
		}
	}
}

// Stop ends the process and waits for its end.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s on %s: %w", p.Name, p.Host.Name, err)
	}
	<-p.done
	return nil
}

// Ended returns ErrEnded, with the end of the log, if the process is gone.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s on %s: %w:\n%s", p.Name, p.Host.Name, ErrEnded, p.tail())
	default:
		return nil
	}
}

// Gone waits until a process that was told to end has ended.
func (p *Process) Gone(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(patience):
		return fmt.Errorf("%s on %s does not end; its log ends with:\n%s", p.Name, p.Host.Name, p.tail())
	}
}

// Kill ends the process at once, and waits for its end.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s on %s: %w", p.Name, p.Host.Name, err)
	}
	<-p.done
	return nil
}

func (p *Process) tail() string {
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// Run runs a program on a host to its end and returns what it printed. Its error contains what the
// program wrote to stderr.
func Run(ctx context.Context, host *netlab.Host, program string, args ...string) (string, error) {
	out, err := host.Command(ctx, program, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return string(out), fmt.Errorf("%s on %s: %w", program, host.Name, err)
	}
	return string(out), nil
}
