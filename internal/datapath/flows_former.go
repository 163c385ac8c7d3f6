package datapath

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// Versions before 0.2 have flow memory in another table (bpf/director/pick/former_table.h). If one of
// them has run here, its table stays, and the program keeps it up to date, so that the way back
// loses no flow, also if a process is killed. It goes with the first start that is formerLasts after
// the upgrade. Where none has run, a process that ends in good order leaves such a table, which goes
// with the next start of this version. All of this goes with the version that follows 0.2.
const formerLasts = 24 * time.Hour

// What versions before 0.2 call their maps, and where the program finds them.
const (
	formerFlows = "flows"
	formerTags  = "flow_tags"
)

var formerMaps = map[string]string{formerFlows: directorMapFormerFlows, formerTags: directorMapFormerFlowTags}

// formerSpec is such a map as these versions make it.
func formerSpec(spec *ebpf.CollectionSpec, name string) *ebpf.MapSpec {
	shape := spec.Maps[formerMaps[name]].InnerMap.Copy()
	shape.Name = name
	return shape
}

// formerHash names the format of such a map as these versions do.
func formerHash(spec *ebpf.CollectionSpec, name string) (string, error) {
	if name == formerFlows {
		return stateFormat(spec, formerSpec(spec, name))
	}
	var tag *btf.Enum
	if err := spec.Types.TypeByName("flow_tag", &tag); err != nil {
		return "", fmt.Errorf("find enum flow_tag: %w", err)
	}
	return stateFormat(spec, formerSpec(spec, name), tag)
}

// formerTable is that table.
type formerTable struct {
	specs map[string]*ebpf.MapSpec
	pins  map[string]string
	stale bool // the new table was not kept up to date, because such a version has run meanwhile
	in    bool // the program keeps the former one up to date ...
	ends  bool // ... until the first Set
	reads bool // and looks for unknown flows there
}

func newFormerTable(p *pins, spec *ebpf.CollectionSpec) (f formerTable, err error) {
	f = formerTable{specs: map[string]*ebpf.MapSpec{}, pins: map[string]string{}}
	for name := range formerMaps {
		format, err := formerHash(spec, name)
		if err != nil {
			return f, err
		}
		f.specs[name], f.pins[name] = formerSpec(spec, name), p.statePin(name+"-"+format)
	}
	return f, nil
}

// openFormerTable looks whether that table is here, and gives it to the program.
func (k *kernel) openFormerTable() error {
	f, record := &k.formerTable, &k.records.director.Entries[0]
	// All programs that forward fill flow memory. If none forwards, nothing has come since.
	uses, err := k.usedByAll(k.FlowTable)
	if err != nil {
		return err
	}
	f.stale = k.kept[directorMapFlowTable] && !uses
	if f.stale {
		// The table begins anew, and so does its day.
		if err := os.Remove(k.state[directorMapFlowTable]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove pin of flow memory: %w", err)
		}
		k.kept[directorMapFlowTable] = false
	}
	if !k.kept[directorMapFlowTable] {
		record.formerTaken, record.formerLeft = 0, 0
	}
	if _, err := os.Stat(f.pins[formerFlows]); errors.Is(err, os.ErrNotExist) || record.formerBuckets == 0 {
		return nil
	}
	upgraded, err := k.upgraded()
	if err != nil {
		return err
	}
	f.ends = record.formerLeft != 0 || time.Since(upgraded) >= formerLasts
	if f.ends && !k.adopted {
		return nil // the program of this version does not get it
	}
	f.in, f.reads = true, !f.ends && record.formerTaken == 0
	for name, path := range f.pins {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if errors.Is(err, os.ErrNotExist) {
			delete(f.pins, name) // the first versions have no tags, and look everywhere
			continue
		}
		if err != nil {
			return fmt.Errorf("open pinned map %s: %w", path, err)
		}
		err = k.all[formerMaps[name]].Put(uint32(0), m)
		if err = errors.Join(err, m.Close()); err != nil {
			return fmt.Errorf("go on with flow memory of a version before 0.2: %w", err)
		}
	}
	return nil
}

// upgraded is when flow memory began to be in the table of this version.
func (p *pins) upgraded() (time.Time, error) {
	var stat unix.Stat_t
	err := unix.Stat(p.state[directorMapFlowTable], &stat)
	if errors.Is(err, os.ErrNotExist) {
		return time.Now(), nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("look at pin of flow memory: %w", err)
	}
	return time.Unix(stat.Mtim.Unix()), nil
}

// statePins are the pins of the table that stay.
func (f *formerTable) statePins() (paths []string) {
	if f.in && !f.ends {
		for _, path := range f.pins {
			paths = append(paths, path)
		}
	}
	return paths
}

// importFormer copies the flows of the former table to the new one, once. The program finds those
// that it misses, but nothing else looks for flows there.
func (d *Datapath) importFormer() error {
	f, record := &d.kernel.formerTable, &d.kernel.records.director.Entries[0]
	if !f.in || f.ends || record.formerTaken != 0 {
		return nil
	}
	m, err := ebpf.LoadPinnedMap(f.pins[formerFlows], nil)
	if err != nil {
		return fmt.Errorf("open flow memory of a version before 0.2: %w", err)
	}
	defer m.Close()
	memory, err := bpfload.Map[abi.FlowEntry](m)
	if err != nil {
		return err
	}
	defer memory.Close()
	taken, refused, err := d.takeEntries(func(yield func(*abi.FlowEntry) bool) {
		for i := range memory.Entries {
			if e := flows.AtOneMoment(&memory.Entries[i]); !yield(&e) {
				return
			}
		}
	})
	if err != nil {
		return fmt.Errorf("take over flow memory of a version before 0.2: %w", err)
	}
	d.log.Info("flow memory has the flows of the version before", "flows", taken)
	record.formerTaken = 1
	if refused > 0 {
		d.log.Warn("flow memory has no place for some flows of the version before: packets find them in its table until the next start", "flows", refused, "fix", "raise director.limits.flows after that: a flow of IPv6 takes the place of two")
		return nil
	}
	f.reads = false
	settings := d.written
	settings.Flags &^= uint32(abi.SettingsFlagSETTINGS_FORMER)
	return d.writeSettings(settings)
}

// formerFlag makes the program look for unknown flows in the former table.
func (d *Datapath) formerFlag() uint32 {
	if d.kernel.formerTable.reads {
		return uint32(abi.SettingsFlagSETTINGS_FORMER)
	}
	return 0
}

// endFormer takes the former table from the program when it is not needed any more, and what a
// process that was interrupted has left of one.
func (d *Datapath) endFormer() error {
	f := &d.kernel.formerTable
	if f.in && !f.ends {
		return nil
	}
	settings := d.written
	settings.FormerCpus, settings.FormerBuckets = 0, 0
	if settings != d.written {
		if err := d.writeSettings(settings); err != nil {
			return err
		}
	}
	f.in = false
	d.kernel.records.director.Entries[0].formerLeft = 0
	return d.kernel.dropFormer()
}

// dropFormer takes the maps from the program.
func (k *kernel) dropFormer() error {
	var errs []error
	for _, outer := range formerMaps {
		if err := k.all[outer].Delete(uint32(0)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("end flow memory of a version before 0.2: %w", err))
		}
	}
	return errors.Join(errs...)
}

// leaveFormer makes the former table for a version before 0.2 that may come next. From then on the
// program keeps it up to date.
func (d *Datapath) leaveFormer() error {
	f := &d.kernel.formerTable
	if f.in || !d.kernel.inUse || !d.kernel.locks() {
		return nil
	}
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	if d.countFlows(now).remembered == 0 {
		return nil
	}
	made := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range made {
			m.Close()
		}
	}()
	for name, spec := range f.specs {
		if made[name], err = ebpf.NewMap(spec); err != nil {
			return err
		}
	}
	err = d.fillLeft(made, now)
	if err != nil {
		return errors.Join(err, d.kernel.dropFormer())
	}
	f.in = true
	settings := d.written
	record := &d.kernel.records.director.Entries[0]
	record.formerCPUs, record.formerBuckets, record.formerLeft = settings.FormerCpus, settings.FormerBuckets, 1
	for name, path := range f.pins {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := pinClone(made[name], path); err != nil {
			return err
		}
	}
	return nil
}

// fillLeft gives a new table to the program, and copies to it what is remembered.
func (d *Datapath) fillLeft(made map[string]*ebpf.Map, now uint32) error {
	for name, m := range made {
		if err := d.kernel.all[formerMaps[name]].Put(uint32(0), m); err != nil {
			return err
		}
	}
	settings := d.written
	settings.FormerCpus, settings.FormerBuckets = settings.Cpus, made[formerFlows].MaxEntries()/settings.Cpus
	if err := d.writeSettings(settings); err != nil {
		return err
	}
	if err := d.readers.wait(); err != nil {
		return err
	}
	return d.fillFormer(made[formerFlows], made[formerTags], now)
}

// fillFormer copies what is remembered to a new table, of which the program fills free places, too.
func (d *Datapath) fillFormer(table, tags *ebpf.Map, now uint32) error {
	entries, err := bpfload.Map[abi.FlowEntry](table)
	if err != nil {
		return err
	}
	defer entries.Close()
	marks, err := bpfload.Map[uint8](tags)
	if err != nil {
		return err
	}
	defer marks.Close()
	d.nameIndexes()
	left := 0 // without a place
	for e := range d.flows.All() {
		s := d.names.services[e.Service]
		if s == nil || !flows.Live(d.entries.Entries, e, now) {
			continue
		}
		hash := flowOf(s, e).Hash(d.written.FlowSalt, model.AffinityFlow)
		bucket := uint32(hash >> 32 * uint64(d.written.FormerBuckets) >> 32)
		left++
		for i := range d.written.FormerCpus {
			cpu := (uint32(hash) + i) % d.written.FormerCpus
			places := entries.Entries[(cpu*d.written.FormerBuckets+bucket)*flows.FormerWays:][:flows.FormerWays]
			if way := fillPlace(places, e); way >= 0 {
				marks.Entries[(bucket*d.written.FormerCpus+cpu)*flows.FormerWays+uint32(way)] = formerTag(hash)
				left--
				break
			}
		}
	}
	if left > 0 {
		d.log.Warn("a version before 0.2 would not know some flows: its table has no place for them", "flows", left)
	}
	return nil
}

// fillPlace writes a flow to a free place; -1: there is none.
func fillPlace(places []abi.FlowEntry, e *abi.FlowEntry) int {
	for i := range places {
		word := (*uint64)(unsafe.Pointer(&places[i]))
		claimed := abi.FlowEntry{State: uint8(abi.FlowStateFLOW_CLAIMED)}
		if !atomic.CompareAndSwapUint64(word, 0, *(*uint64)(unsafe.Pointer(&claimed))) {
			continue
		}
		entry := *e
		*(*uint64)(unsafe.Pointer(&entry)) = *(*uint64)(unsafe.Pointer(&claimed))
		places[i] = entry
		atomic.StoreUint64(word, *(*uint64)(unsafe.Pointer(e)))
		return i
	}
	return -1
}

// formerTag is the tag of a flow by its hash.
func formerTag(hash uint64) uint8 {
	const most = uint8(abi.FlowTagFLOW_TAG_ANY)
	if tag := uint8(hash); tag > most {
		return tag
	}
	return uint8(hash) + most + 1
}
