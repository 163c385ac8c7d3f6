// Package routerlab runs routing daemons on the hosts of a lab: FRR, BIRD, GoBGP and
// ExaBGP, as Debian packages have them. They end with the lab.
package routerlab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"weir.io/weir/lab/netlab"
)

// Daemon is a routing daemon in the foreground.
type Daemon struct {
	name  string
	cmd   *netlab.Command
	log   string
	ended chan struct{}
}

// start starts a daemon, whose output goes to a file in the directory.
func start(h *netlab.Host, dir, name, program string, args ...string) (*Daemon, error) {
	d := &Daemon{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	defer log.Close()
	d.cmd = h.Command(context.Background(), program, args...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s on %s (make deps installs it): %w", name, h.Name, err)
	}
	go func() {
		_ = d.cmd.Wait() // how it ended is in its log
		close(d.ended)
	}()
	return d, nil
}

// Signal sends a signal.
func (d *Daemon) Signal(signal syscall.Signal) error {
	if err := d.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("signal %s: %w", d.name, err)
	}
	return nil
}

// Stop ends the daemon and waits for that.
func (d *Daemon) Stop() error {
	if err := d.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-d.ended:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s does not end", d.name)
	}
}

// Log returns what the daemon has said.
func (d *Daemon) Log() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// patience is how long a daemon may take to do what it is told.
const patience = time.Minute

// until waits for a condition while the daemon runs.
func (d *Daemon) until(what string, condition func() bool) error {
	for end := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-d.ended:
			return fmt.Errorf("%s ended:\n%s", d.name, d.Log())
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not %s:\n%s", d.name, what, d.Log())
		}
	}
	return nil
}

// directory makes a router's own directory, with its configuration.
func directory(h *netlab.Host, name string, files map[string]string) (dir string, err error) {
	dir = filepath.Join(h.Dir(), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("directory of %s: %w", name, err)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("configuration of %s: %w", name, err)
		}
	}
	return dir, nil
}

// output runs one of a daemon's programs on its host and returns what it prints.
func output(h *netlab.Host, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := h.Command(ctx, program, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s on %s: %w\n%s", program, h.Name, err, out)
	}
	return string(out), nil
}
