package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"weir.io/weir/internal/model"
)

// reasonMemory has the counters of enum host_reason. All versions share it: the map has room for
// reasons that later versions append (COUNTERS_ROOM), and a number never changes its meaning, which
// TestNumbersStay checks. Its pin is not among those of a version's maps.
//
// Versions up to b0b593b had a map of their own, with as many elements as there were reasons. When
// no program counts in that map any more, its counts go to the second half of this one, which no
// program writes.
type reasonMemory struct {
	*ebpf.Map
	path   string
	fresh  bool // this process made it
	former map[string]*ebpf.Map
}

const (
	reasonsName   = "reasons"
	formerReasons = 31 // of the versions that had a map of their own
)

// openReasons opens the memory that is pinned, or makes one.
func openReasons(p *pins, spec *ebpf.CollectionSpec) (*reasonMemory, error) {
	m := spec.Maps[reasonsName]
	format := sha256.Sum256(fmt.Appendf(nil, "%v %d %d %d %9v %9v", m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Key, m.Value))
	r := &reasonMemory{path: filepath.Join(p.state(), fmt.Sprintf("%s-%x", reasonsName, format[:8])), former: map[string]*ebpf.Map{}}
	if err := os.MkdirAll(p.state(), 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	_, err := os.Stat(r.path)
	r.fresh = errors.Is(err, os.ErrNotExist)
	if r.Map, err = openPinned(r.path, m); err != nil {
		return nil, fmt.Errorf("open counters of reasons: %w", err)
	}
	if err := r.openFormer(p); err != nil {
		return nil, errors.Join(err, r.giveUp())
	}
	return r, nil
}

func (r *reasonMemory) openFormer(p *pins) error {
	paths, err := filepath.Glob(filepath.Join(p.maps("*"), reasonsName))
	if err != nil {
		return err
	}
	for _, path := range paths {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return fmt.Errorf("open counters of a version before: %w", err)
		}
		if m.Type() != ebpf.PerCPUArray || m.ValueSize() != r.ValueSize() || m.MaxEntries() != formerReasons {
			_ = m.Close() // of a version that was never in use
			continue
		}
		r.former[path] = m
	}
	return nil
}

// replacements gives the programs this map instead of one of their own.
func (r *reasonMemory) replacements() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{reasonsName: r.Map}
}

// counted is what programs of all versions have counted for a reason.
func (r *reasonMemory) counted(reason uint32) (bpfCounter, error) {
	sum, err := readCounter(r.Map, reason)
	if err != nil {
		return sum, err
	}
	parts := []*ebpf.Map{r.Map}
	at := []uint32{r.MaxEntries()/2 + reason}
	for _, m := range r.former {
		if reason < m.MaxEntries() {
			parts, at = append(parts, m), append(at, reason)
		}
	}
	for i, m := range parts {
		c, err := readCounter(m, at[i])
		if err != nil {
			return sum, err
		}
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
	}
	return sum, nil
}

// takeOver ends the maps of earlier versions, whose programs no longer run. Their pins go first, so
// that no count is carried over twice.
func (r *reasonMemory) takeOver() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	for path, m := range r.former {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove pin of a version's counters: %w", err)
		}
		for reason := range m.MaxEntries() {
			carried, err := readCounter(m, reason)
			if err != nil {
				return fmt.Errorf("read counter %d of a version before: %w", reason, err)
			}
			at := r.MaxEntries()/2 + reason
			before, err := readCounter(r.Map, at)
			if err != nil {
				return fmt.Errorf("read carried counter %d: %w", reason, err)
			}
			sums := make([]bpfCounter, cpus)
			sums[0] = bpfCounter{Packets: before.Packets + carried.Packets, Bytes: before.Bytes + carried.Bytes}
			if err := r.Put(at, sums); err != nil {
				return fmt.Errorf("carry counter %d over: %w", reason, err)
			}
		}
		delete(r.former, path)
		if err := m.Close(); err != nil {
			return err
		}
	}
	return nil
}

// close ends this process's part: the memory stays.
func (r *reasonMemory) close() error {
	errs := []error{r.Close()}
	for _, m := range r.former {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// giveUp removes a memory that this process made and no program uses.
func (r *reasonMemory) giveUp() error {
	err := r.close()
	if r.fresh {
		err = errors.Join(err, os.Remove(r.path))
		_ = os.Remove(filepath.Dir(r.path)) // only if it is empty
	}
	return err
}

func (a *Agent) reasons() ([]model.Counter, error) {
	names, err := reasonNames()
	if err != nil {
		return nil, err
	}
	counters := make([]model.Counter, 0, len(names))
	for i, name := range names {
		c, err := a.reasonCounts.counted(uint32(i))
		if err != nil {
			return nil, fmt.Errorf("counter of reason %s: %w", name, err)
		}
		counters = append(counters, model.Counter{Name: name, Packets: c.Packets, Bytes: c.Bytes})
	}
	return counters, nil
}

// reasonNames returns the label of each reason: its name in enum host_reason, in lower case,
// without the prefix that all names have.
func reasonNames() ([]string, error) {
	spec, err := loadBpf()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	return enumNames(spec, "host_reason", "HOST_", uint64(bpfHostReasonHOST_REASON_COUNT))
}

// enumNames returns the names of an enum by their numbers, except the one that counts them.
func enumNames(spec *ebpf.CollectionSpec, name, prefix string, count uint64) ([]string, error) {
	var enum *btf.Enum
	if err := spec.Types.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find enum %s: %w", name, err)
	}
	names := make([]string, count)
	for _, v := range enum.Values {
		if v.Value != count {
			names[v.Value] = strings.ToLower(strings.TrimPrefix(v.Name, prefix))
		}
	}
	return names, nil
}
