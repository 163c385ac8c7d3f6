package main

import (
	"os"
	"syscall"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bfd"
)

// A director whose program was replaced while it runs, as an upgrade does before the restart, or
// removed, starts its BFD process again, from its own running program.
func TestBFDProcessOfAReplacedProgram(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	binary := h.beside("weir")
	if err := os.WriteFile(binary, self, 0o755); err != nil {
		t.Fatal(err)
	}
	h.configure("director: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}\nbfd: {neighbors: [{address: 10.0.0.2}]}", "web")
	h.binary = binary
	p := h.start("director runs")
	h.binary = ""
	process := func() (pid int) {
		h.awaitAnswer("the BFD process answers", func(*api.Status) bool {
			status, err := bfd.Ask(t.Context(), bfd.Socket(h.socket))
			pid = status.PID
			return err == nil
		})
		return pid
	}
	for n, change := range []func() error{
		func() error {
			other := h.beside("other")
			if err := os.WriteFile(other, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
				return err
			}
			return os.Rename(other, binary)
		},
		func() error { return os.Remove(binary) },
	} {
		pid := process()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		h.awaitAnswer("the BFD process is started again", func(s *api.Status) bool { return repairs(s, "bfd") == uint64(n+1) })
		if now := process(); now == pid {
			t.Errorf("process %d was killed, and is said to answer", pid)
		}
	}
	h.stopWithBFD(p)
}
