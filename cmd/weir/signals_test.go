package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// signalled are the processes that take signals, and what they log when they run.
var signalled = map[string]string{"run": `msg="director runs"`, "agent": `msg="agent runs"`}

// begin starts a process, and waits until its main has begun: then it watches its file's directory, and
// reads the file.
func (h *host) begin(verb string, more ...string) *process {
	h.t.Helper()
	p := h.startVerb(verb, "", more...)
	fds := filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "fd")
	p.wait("begin", func() bool {
		open, _ := os.ReadDir(fds)
		for _, fd := range open {
			if to, _ := os.Readlink(filepath.Join(fds, fd.Name())); to == "anon_inode:inotify" {
				return true
			}
		}
		return false
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// A hangup that comes while a process still begins does not end it, and neither does one while it ends.
func TestHangupAtTheBeginning(t *testing.T) {
	for verb, runs := range signalled {
		t.Run(verb, func(t *testing.T) {
			h := newHost(t)
			// It takes a while to read.
			h.configure(onEth0+"\ndirectors: [10.0.0.2]\n"+strings.Repeat("#"+strings.Repeat(" ", 1000)+"\n", 8000), "web")
			for range 3 {
				p := h.begin(verb)
				p.signal(syscall.SIGHUP)
				p.waitLog(runs)
				p.signal(syscall.SIGHUP)
				p.signal(syscall.SIGTERM)
				for end := true; end; {
					select {
					case err := <-p.ended:
						if end = false; err != nil {
							t.Errorf("it ends with %v\n%s", err, p.stderr)
						}
					default:
						_ = p.cmd.Process.Signal(syscall.SIGHUP) // it may be over
					}
				}
			}
		})
	}
}

// SIGUSR1 counts if it comes while the director still opens what it needs.
func TestToldOfShutdownAtTheBeginning(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.begin("run", "--shutdown-grace-period", "1h")
	p.signal(syscall.SIGUSR1)
	p.waitLog(signalled["run"])
	p.signal(syscall.SIGTERM)
	p.waitLog(`msg="director withdraws: it forwards for its grace period, and then detaches" wait=1h`)
	p.stop()
}

// A process that is told to end while it begins ends, with no error, whenever that is, and leaves no
// socket. A director that forwards nothing yet leaves nothing in the kernel. Before its main has begun,
// the signal kills it.
func TestEndedAtTheBeginning(t *testing.T) {
	for verb := range signalled {
		t.Run(verb, func(t *testing.T) {
			h := newHost(t)
			h.configure(onEth0+"\ndirectors: [10.0.0.2]", "web")
			for _, ms := range []time.Duration{0, 5, 10, 20, 30, 50, 100, 200, 500, 1000} {
				delay := ms * time.Millisecond
				p := h.startVerb(verb, "")
				time.Sleep(delay) // the signal comes in each part of the beginning
				p.signal(syscall.SIGTERM)
				err := <-p.ended
				log := p.stderr.String()
				var exit *exec.ExitError
				if killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM && log == ""; err != nil && !killed {
					t.Errorf("told to end after %v, it ends with %v\n%s", delay, err, log)
				}
				if _, err := os.Lstat(h.socket); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("told to end after %v, it leaves its socket: %v\n%s", delay, err, log)
				}
				if left, _ := os.ReadDir(filepath.Join(h.bpffs, "weir")); verb == "run" && h.program() == 0 && len(left) > 0 {
					t.Errorf("told to end after %v, before it forwards, it leaves %v\n%s", delay, left, log)
				}
				h.detach()
			}
		})
	}
}
