package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// grace waits until all program runs that began before have ended: a packet that looked at a ring
// just before its switch must find its backend as it was.
type grace struct {
	outer, inner *ebpf.Map
}

// newGrace makes a map of maps, because the kernel waits for a grace period before
// it returns from a write to one (maybe_wait_bpf_programs in kernel/bpf/syscall.c).
func newGrace() (*grace, error) {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	g := &grace{}
	var err error
	if g.inner, err = ebpf.NewMap(inner); err != nil {
		return nil, fmt.Errorf("create a map to wait for programs with: %w", err)
	}
	if g.outer, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, MaxEntries: 1, InnerMap: inner}); err != nil {
		return nil, errors.Join(fmt.Errorf("create a map of maps to wait for programs with: %w", err), g.inner.Close())
	}
	return g, nil
}

func (g *grace) wait() error {
	if err := g.outer.Put(uint32(0), g.inner); err != nil {
		return fmt.Errorf("wait for programs that run: %w", err)
	}
	return nil
}

func (g *grace) close() error { return errors.Join(g.outer.Close(), g.inner.Close()) }
