package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// With --grace-period, a director that is told to end works on for a while, and leaves nothing behind.
func TestDirectorDrains(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`msg="director runs"`, "--grace-period", "5s")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitLog(`msg="director withdraws: it forwards for its grace period, and then detaches" wait=5s`)
	h.configure(onEth0, "web", "mail")
	p.waitLog(`msg="configuration applied" services=2`)
	if err := <-p.ended; err != nil {
		t.Errorf("a director that drained ends with %v", err)
	}
	if got := h.program(); got != 0 {
		t.Errorf("after the drain program %d is attached", got)
	}
	if left, _ := os.ReadDir(filepath.Join(h.bpffs, "weir")); len(left) > 0 {
		t.Errorf("after the drain %v is left", left)
	}
}

// A director that is told twice does not wait, and leaves its program to the next director.
func TestDirectorIsToldTwice(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`msg="director runs"`, "--grace-period", "1h")
	before := h.program()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitLog(`msg="director withdraws`)
	p.stop()
	if got := h.program(); got != before || got == 0 {
		t.Errorf("told twice, the director leaves program %d, before it was %d", got, before)
	}
	h.start(`msg="director runs"`, "--grace-period", "1ms").stop()
	if got := h.program(); got != 0 {
		t.Errorf("after the drain program %d is attached", got)
	}
}
