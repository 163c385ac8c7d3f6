package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"weir.io/weir/lab/netlab"
)

// errDaemonEnded says that a weir process ended without being told to.
var errDaemonEnded = errors.New("process ended by itself")

// daemon is a weir process on a host: a director or an agent.
type daemon struct {
	weir, verb string // the program that is run
	host       *netlab.Host
	config     string // its file
	log        string
	socket     string
	cmd        *netlab.Command
	ended      chan struct{} // closed when it has
}

// startDaemon runs "weir run" or "weir agent" on the host with that configuration.
// Closing the lab kills it.
func startDaemon(weir, verb string, host *netlab.Host, config []byte) (*daemon, error) {
	// The file has its directory to itself: weir watches the directory.
	dir := filepath.Join(host.Dir(), "etc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d := &daemon{weir: weir, verb: verb, host: host, config: filepath.Join(dir, "weir.yaml"),
		log: filepath.Join(host.Dir(), "weir.log"), socket: filepath.Join(host.Dir(), "weir.sock")}
	if err := d.write(config); err != nil {
		return nil, err
	}
	return d, d.start()
}

// start starts the process, or the next one.
func (d *daemon) start() error {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, ended := d.host.Command(context.Background(), d.weir, d.verb, "-c", d.config, "--bpffs", d.host.BPFFS(), "--socket", d.socket), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start weir %s on %s: %w", d.verb, d.host.Name, err)
	}
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended is in its log
	}()
	d.cmd, d.ended = cmd, ended
	return nil
}

// kill ends the process at once, and nothing else.
func (d *daemon) kill() error {
	if err := d.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill weir %s on %s: %w", d.verb, d.host.Name, err)
	}
	<-d.ended
	return nil
}

// detach removes what is pinned, as the end of a host does.
func (d *daemon) detach(ctx context.Context) error {
	out, err := d.host.Command(ctx, d.weir, "detach", "--bpffs", d.host.BPFFS(), "--socket", d.socket).CombinedOutput()
	if err != nil {
		return fmt.Errorf("detach weir on %s: %w: %s", d.host.Name, err, out)
	}
	return nil
}

// write replaces the daemon's file as editors do: no reader sees half of it.
func (d *daemon) write(config []byte) error {
	if err := os.WriteFile(d.config+".new", config, 0o644); err != nil {
		return fmt.Errorf("write configuration of %s: %w", d.host.Name, err)
	}
	return os.Rename(d.config+".new", d.config)
}

// alive returns an error with the end of the log if the process is gone.
func (d *daemon) alive() error {
	select {
	case <-d.ended:
		return fmt.Errorf("weir on %s: %w:\n%s", d.host.Name, errDaemonEnded, d.tail())
	default:
		return nil
	}
}

// tail returns the last lines of the log.
func (d *daemon) tail() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
