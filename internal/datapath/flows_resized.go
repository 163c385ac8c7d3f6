package datapath

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
)

// Flow memory of another size is another map: director.limits.flows has changed. Its flows are copied
// before the program of this process forwards, and those that have changed meanwhile once more after
// that.

// resizedFlows is that map.
type resizedFlows struct {
	kernel *ebpf.Map // nil: there is none
	flows.Memory
	since uint32 // flows that no packet has come of since were copied
}

// openResized finds flow memory of this format and another size that all programs use which forward.
func (k *kernel) openResized(spec *ebpf.CollectionSpec) error {
	if k.kept[directorMapFlowTable] || len(k.attached) == 0 {
		return nil
	}
	paths, err := filepath.Glob(k.statePin(directorMapFlowTable + "-*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return fmt.Errorf("open pinned map %s: %w", path, err)
		}
		format, err := stateHashOf(spec, directorMapFlowTable, m.MaxEntries())
		uses := false
		if err == nil && path == k.statePin(directorMapFlowTable+"-"+format) {
			uses, err = k.usedByAll(m)
		}
		if uses {
			k.resized.kernel = m
			k.resized.Memory.Memory, err = bpfload.Map[abi.FlowPlace](m)
			return err
		}
		if err = errors.Join(err, m.Close()); err != nil {
			return err
		}
	}
	return nil
}

// close lets go of the map.
func (r *resizedFlows) close() error {
	if r.kernel == nil {
		return nil
	}
	err := errors.Join(r.Memory.Close(), r.kernel.Close())
	*r = resizedFlows{}
	return err
}

// takeResized copies the flows of flow memory of another size that have changed since the last call.
func (d *Datapath) takeResized() error {
	r := &d.kernel.resized
	if r.kernel == nil {
		return nil
	}
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	taken, refused, err := d.takeEntries(func(yield func(*abi.FlowEntry) bool) {
		for e := range r.All() {
			if e.Seen >= r.since && !yield(e) {
				return
			}
		}
	})
	if err != nil {
		return fmt.Errorf("take over flow memory of another size: %w", err)
	}
	if r.since == 0 {
		d.log.Info("flow memory of another size has the flows of the one before", "flows", taken)
	}
	if refused > 0 {
		d.log.Warn("flow memory of another size has no place for some flows of the one before: their packets may go to other backends", "flows", refused, "fix", "raise director.limits.flows")
	}
	r.since = max(1, now-1) // a flow's time may be noted a moment after its packet
	return nil
}

// endResized copies what has changed until the program before has ended its last run, and lets go of the
// map.
func (d *Datapath) endResized() error {
	if d.kernel.resized.kernel == nil {
		return nil
	}
	if err := d.readers.wait(); err != nil {
		return err
	}
	if err := d.takeResized(); err != nil {
		return err
	}
	return d.kernel.resized.close()
}

// usedByAll says whether all programs that forward have a map.
func (k *kernel) usedByAll(m *ebpf.Map) (bool, error) {
	info, err := m.Info()
	if err != nil {
		return false, fmt.Errorf("look at flow memory: %w", err)
	}
	table, _ := info.ID()
	for id := range k.attached {
		program, err := k.openProgram(id)
		if err != nil {
			return false, fmt.Errorf("open the program that forwards: %w", err)
		}
		info, err := program.Info()
		program.Close()
		if err != nil {
			return false, fmt.Errorf("look at the program that forwards: %w", err)
		}
		if used, _ := info.MapIDs(); !slices.Contains(used, table) {
			return false, nil
		}
	}
	return true, nil
}
