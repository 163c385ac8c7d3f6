package agent

import (
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// TestRefusedProgram: a version whose program the kernel refuses leaves what was
// pinned before, and nothing of its own.
func TestRefusedProgram(t *testing.T) {
	s := newStreet(t, true)
	do(t, s.host, "load", func() error {
		p, err := openPins(s.host.BPFFS())
		if err != nil {
			return err
		}
		defer p.close()
		before := pinnedTree(t, p)
		spec, err := loadBpf()
		if err != nil {
			return err
		}
		spec.Programs["host_egress"].Instructions = asm.Instructions{asm.Return()} // of what nobody has set
		if _, err := load(p, spec, 4096, slog.New(slog.DiscardHandler)); err == nil {
			t.Error("a program that returns nothing was loaded")
		}
		if now := pinnedTree(t, p); !slices.Equal(now, before) {
			t.Errorf("pinned is %q, want %q as before", now, before)
		}
		return nil
	})
	do(t, s.host, "detach", func() error { return Detach(s.host.BPFFS()) })
}

func pinnedTree(t *testing.T, p *pins) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(p.root, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return paths
}

// TestClosedAgentOwnsNothing: an agent that was closed, and looks at its host a last time, leaves
// the host and the lock of its pins to the next one.
func TestClosedAgentOwnsNothing(t *testing.T) {
	s := newStreet(t, true)
	a := s.agent(t, AttachAuto)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	do(t, s.host, "start another agent", func() error {
		a.reconciler.Look()
		next, err := Open(Deps{Pin: s.host.BPFFS(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		return next.Close()
	})
	do(t, s.host, "detach", func() error { return Detach(s.host.BPFFS()) })
}
