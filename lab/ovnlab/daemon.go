package ovnlab

import (
	"bytes"
	"os/exec"
	"sync"
	"syscall"
	"testing"
)

// Daemon is a process in the foreground that ends with its test, and what it has said.
type Daemon struct {
	Name  string
	Ended chan struct{} // closed when it has ended

	cmd *exec.Cmd

	mu   sync.Mutex
	said bytes.Buffer
}

// StartDaemon starts a daemon, in a network namespace if at is not nil.
func StartDaemon(t testing.TB, at Place, name string, cmd *exec.Cmd) *Daemon {
	t.Helper()
	d := &Daemon{Name: name, cmd: cmd, Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = d, d
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	start := cmd.Start
	if at != nil {
		// The thread in the namespace may end, and would take the process along. Namespaces end theirs.
		cmd.SysProcAttr.Pdeathsig = 0
		start = func() error { return at.Do(cmd.Start) }
	}
	if err := start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in what it has said
		close(d.Ended)
	}()
	t.Cleanup(d.Kill)
	return d
}

// Kill ends the daemon and its own processes, and waits until it has ended.
func (d *Daemon) Kill() {
	_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
	<-d.Ended
}

// Write takes what the daemon says.
func (d *Daemon) Write(text []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.Write(text)
}

// Log returns what the daemon has said.
func (d *Daemon) Log() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.String()
}
