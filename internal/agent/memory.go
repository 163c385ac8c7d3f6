package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// memory is the maps that programs of all versions share, because their content cannot be made
// again. So their pins are not among those of a version's maps, and are named by their formats.
type memory struct {
	dir          string
	maps         []sharedMap // all that are open
	flows        udpMemory
	pods         podMemory
	reasonCounts reasonMemory
}

type sharedMap struct {
	*ebpf.Map
	name string // in the programs
	path string // of its pin
	made bool   // by this process
}

// openMemory opens the maps that are pinned, and makes the others: those of UDP flows for so many
// flows.
func openMemory(p *pins, spec *ebpf.CollectionSpec, flows uint32) (*memory, error) {
	m := &memory{dir: p.state()}
	err := m.openFlows(spec, flows)
	if err == nil {
		err = m.openPods(spec)
	}
	if err == nil {
		err = m.openReasons(p, spec)
	}
	if err != nil {
		return nil, errors.Join(err, m.giveUp())
	}
	return m, nil
}

// open opens a map that is pinned, or makes and pins one.
func (m *memory) open(name, path string, spec *ebpf.MapSpec) (opened sharedMap, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return opened, fmt.Errorf("make state directory: %w", err)
	}
	opened = sharedMap{name: name, path: path}
	if opened.Map, err = ebpf.LoadPinnedMap(path, nil); errors.Is(err, os.ErrNotExist) {
		opened.made = true
		opened.Map, err = ebpf.NewMap(spec)
	}
	if err != nil {
		return opened, fmt.Errorf("open %s of %d elements: %w", name, spec.MaxEntries, err)
	}
	m.maps = append(m.maps, opened)
	if !opened.made {
		return opened, nil
	}
	if err := opened.Pin(path); err != nil {
		return opened, fmt.Errorf("pin %s: %w", name, err)
	}
	return opened, nil
}

// replacements gives the programs these maps instead of some of their own.
func (m *memory) replacements() map[string]*ebpf.Map {
	list := make(map[string]*ebpf.Map, len(m.maps))
	for _, shared := range m.maps {
		list[shared.name] = shared.Map
	}
	return list
}

// close ends this process's part: the memory stays.
func (m *memory) close() error {
	var errs []error
	for _, shared := range m.maps {
		errs = append(errs, shared.Close())
	}
	for _, former := range m.reasonCounts.former {
		errs = append(errs, former.Close())
	}
	return errors.Join(errs...)
}

// giveUp removes what this process made and no program uses.
func (m *memory) giveUp() error {
	err := m.close()
	for _, shared := range m.maps {
		if shared.made {
			err = errors.Join(err, os.RemoveAll(shared.path))
			_ = os.Remove(filepath.Dir(shared.path)) // only if it is empty
		}
	}
	_ = os.Remove(m.dir)
	return err
}

// retireOthers ends the memories of earlier settings and versions, whose programs no longer run.
func (m *memory) retireOthers() error {
	return errors.Join(
		m.flows.sustained.retireOthers(m.dir, flowsName),
		m.flows.begun.retireOthers(m.dir, freshName),
		removeOthers(filepath.Join(m.dir, podDirectories+"*"), m.pods.dir),
		m.reasonCounts.retireOthers())
}

// The maps of UDP flows whose datagrams this host has kept: those that are sustained
// (bpf/lib/proof.h), and those that have just begun.
const (
	flowsName = "udp_flows"
	freshName = "udp_fresh"
)

// udpMemory is both maps. Without them nothing is remembered.
type udpMemory struct{ sustained, begun sharedMap }

// remembers says whether there is a memory.
func (u *udpMemory) remembers() bool { return u.sustained.Map != nil }

// openFlows opens the memory for so many flows; 0: nothing is remembered.
func (m *memory) openFlows(spec *ebpf.CollectionSpec, flows uint32) (err error) {
	if err := spec.Variables["remembers_flows"].Set(uint8(min(flows, 1))); err != nil {
		return fmt.Errorf("set remembers_flows: %w", err)
	}
	if err := spec.Variables["udp_room"].Set(flows); err != nil {
		return fmt.Errorf("set udp_room: %w", err)
	}
	if m.flows.sustained, err = m.openSized(flowsName, spec, flows); err != nil {
		return err
	}
	m.flows.begun, err = m.openSized(freshName, spec, freshFlows(flows))
	return err
}

// freshFlows is how many flows that have just begun are remembered beside so many that are
// sustained: few, because most soon become sustained or are part of a flood.
func freshFlows(flows uint32) uint32 {
	if flows == 0 {
		return 0
	}
	return max(model.MinUDPFlows, flows/4)
}

// openSized opens a map for so many flows; 0: none. A new map gets the content of those of another
// size.
func (m *memory) openSized(name string, spec *ebpf.CollectionSpec, flows uint32) (opened sharedMap, err error) {
	s := spec.Maps[name]
	s.MaxEntries = max(1, flows)
	if flows == 0 {
		return opened, nil
	}
	format := sha256.Sum256(fmt.Appendf(nil, "%v %d %d %9v %9v", s.Type, s.KeySize, s.ValueSize, s.Key, s.Value))
	path := fmt.Sprintf("%s%x-%d", sizedPath(m.dir, name), format[:8], flows)
	if opened, err = m.open(name, path, s); err == nil && opened.made {
		err = opened.copyOthers()
	}
	return opened, err
}

// sizedPath is what the paths of all formats and sizes of a map begin with.
func sizedPath(dir, name string) string {
	return filepath.Join(dir, strings.ReplaceAll(name, "_", "-")+"-")
}

// retireOthers ends the maps of other sizes and formats. What their programs have noted since the first
// copy is copied, too.
func (s sharedMap) retireOthers(dir, name string) error {
	if s.Map != nil {
		if err := s.copyOthers(); err != nil {
			return err
		}
	}
	return removeOthers(sizedPath(dir, name)+"*", s.path)
}

// copyOthers copies the flows in maps of another size. If there is less room, the kernel decides
// which flows have none. This version cannot read maps of another format.
func (s sharedMap) copyOthers() error {
	paths, err := filepath.Glob(s.path[:strings.LastIndex(s.path, "-")] + "-*")
	for _, path := range paths {
		if path == s.path {
			continue
		}
		other, opened := ebpf.LoadPinnedMap(path, nil)
		if opened != nil {
			err = errors.Join(err, fmt.Errorf("open memory of UDP flows %s: %w", path, opened))
			continue
		}
		err = errors.Join(err, s.copy(other), other.Close())
	}
	return err
}

// copy adds the flows of another memory that this one lacks. The other one is in use: an iteration
// that the kernel would have to begin anew because of that has seen enough.
func (s sharedMap) copy(other *ebpf.Map) error {
	var flow bpfHostFlow
	var value []byte
	entries := other.Iterate()
	for entries.Next(&flow, &value) {
		if err := s.Update(&flow, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("copy memory of UDP flows: %w", err)
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read memory of UDP flows: %w", err)
	}
	return nil
}

// reasonMemory has the counters of enum host_reason. The map has room for reasons that later versions
// append (COUNTERS_ROOM), and a number never changes its meaning, which TestNumbersStay checks.
//
// Versions up to b0b593b had a map of their own, with as many elements as there were reasons. When
// no program counts in that map any more, its counts go to the second half of this one, which no
// program writes.
type reasonMemory struct {
	sharedMap
	former map[string]*ebpf.Map // by the paths of their pins
}

const (
	reasonsName   = "reasons"
	formerReasons = 31 // of the versions that had a map of their own
)

func (m *memory) openReasons(p *pins, spec *ebpf.CollectionSpec) (err error) {
	s, r := spec.Maps[reasonsName], &m.reasonCounts
	format := sha256.Sum256(fmt.Appendf(nil, "%v %d %d %d %9v %9v", s.Type, s.KeySize, s.ValueSize, s.MaxEntries, s.Key, s.Value))
	r.former = map[string]*ebpf.Map{}
	if r.sharedMap, err = m.open(reasonsName, filepath.Join(m.dir, fmt.Sprintf("%s-%x", reasonsName, format[:8])), s); err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(p.maps("*"), reasonsName))
	if err != nil {
		return err
	}
	for _, path := range paths {
		former, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return fmt.Errorf("open counters of a version before: %w", err)
		}
		if former.Type() != ebpf.PerCPUArray || former.ValueSize() != r.ValueSize() || former.MaxEntries() != formerReasons {
			_ = former.Close() // of a version that was never in use
			continue
		}
		r.former[path] = former
	}
	return nil
}

// carriedAt is where counts of maps of earlier versions are kept.
func (r *reasonMemory) carriedAt(reason uint32) uint32 { return r.MaxEntries()/2 + reason }

// counted is what programs of all versions have counted for a reason.
func (r *reasonMemory) counted(reason uint32) (sum bpfCounter, err error) {
	add := func(m *ebpf.Map, at uint32) {
		c, failed := readCounter(m, at)
		sum.Packets, sum.Bytes, err = sum.Packets+c.Packets, sum.Bytes+c.Bytes, errors.Join(err, failed)
	}
	add(r.Map, reason)
	add(r.Map, r.carriedAt(reason))
	for _, m := range r.former {
		if reason < m.MaxEntries() {
			add(m, reason)
		}
	}
	return sum, err
}

// retireOthers ends the maps of earlier versions, whose programs no longer run. Their pins go first, so
// that no count is carried over twice.
func (r *reasonMemory) retireOthers() error {
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
			at := r.carriedAt(reason)
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
