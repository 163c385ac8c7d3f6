package datapath

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Maps that count by an enum have room for values that later versions append (COUNTERS_ROOM), and
// the enum is not part of their format: versions before and after share them. So a number, once
// given, never changes its meaning, which TestNumbersStay checks.
//
// In the format before, these maps had as many elements as the enum had values. When no program
// counts in such a map any more, its counts go to the second half of the new map, which no program
// writes.
var formerSizes = map[string]struct {
	enum   string
	values uint32
}{
	directorMapReasons:    {"reason", 34},
	directorMapFlowEvents: {"flow_event", 4},
	directorMapQuicEvents: {"quic_event", 4},
	directorMapAskEvents:  {"ask_event", 13},
}

// formerFormat is the name that stateHash gave such a map before it had that room.
func formerFormat(spec *ebpf.CollectionSpec, name string) (string, error) {
	former := formerSizes[name]
	var enum *btf.Enum
	if err := spec.Types.TypeByName(former.enum, &enum); err != nil {
		return "", fmt.Errorf("find enum %s: %w", former.enum, err)
	}
	shape := spec.Maps[name].Copy()
	shape.MaxEntries = former.values
	return stateFormat(spec, shape, firstOf(enum, former.values))
}

// firstOf is an enum with only its first values and the value that counts them.
func firstOf(enum *btf.Enum, values uint32) *btf.Enum {
	first := *enum
	first.Values = slices.Clone(enum.Values[:values])
	for _, v := range enum.Values {
		if strings.HasSuffix(v.Name, "_COUNT") {
			first.Values = append(first.Values, btf.EnumValue{Name: v.Name, Value: uint64(values)})
		}
	}
	return &first
}

// formerCounts are an earlier version's maps of the format before, by name.
type formerCounts map[string]*ebpf.Map

// openFormer opens those maps that are pinned.
func (p *pins) openFormer() (formerCounts, error) {
	former := formerCounts{}
	for name, path := range p.former {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open pinned map %s: %w", path, err), former.close())
		}
		former[name] = m
	}
	return former, nil
}

func (f formerCounts) close() error {
	var errs []error
	for name, m := range f {
		errs = append(errs, m.Close())
		delete(f, name)
	}
	return errors.Join(errs...)
}

// counted sums the counts of all CPUs for one of an enum's values, in maps of both formats.
func (k *kernel) counted(name string, value uint32) (tally, error) {
	m := k.all[name]
	now, err := readTally(m, value)
	if err != nil {
		return tally{}, err
	}
	carried, err := readTally(m, m.MaxEntries()/2+value)
	if err != nil {
		return tally{}, err
	}
	now = now.plus(carried)
	if name == directorMapReasons && value == uint32(abi.ReasonFORWARD_L2DSR) {
		queues, err := k.queuesCounted()
		if err != nil {
			return tally{}, err
		}
		now = now.plus(queues)
	}
	if f := k.former[name]; f != nil && value < f.MaxEntries() {
		before, err := readTally(f, value)
		if err != nil {
			return tally{}, err
		}
		now = now.plus(before)
	}
	return now, nil
}

// carryOver ends the maps of the format before: their counts go to the second half of this
// version's maps. Their pins go first, so that no count is carried over twice.
func (k *kernel) carryOver() error {
	if err := k.formerQueues.carryOver(k.all[directorMapReasons]); err != nil {
		return err
	}
	for name, f := range k.former {
		if err := os.Remove(k.pins.former[name]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove pin of the counters before: %w", err)
		}
		m := k.all[name]
		for value := range f.MaxEntries() {
			if err := carry(m, m.MaxEntries()/2+value, f, value); err != nil {
				return fmt.Errorf("carry %s over: %w", name, err)
			}
		}
		delete(k.former, name)
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// carry adds an element of another map to an element that no program writes.
func carry(to *ebpf.Map, index uint32, from *ebpf.Map, value uint32) error {
	before, err := readTally(from, value)
	if err != nil {
		return err
	}
	carried, err := readTally(to, index)
	if err != nil {
		return err
	}
	return writeTally(to, index, carried.plus(before))
}

// readTally sums an element of a map of counters, with or without bytes.
func readTally(m *ebpf.Map, index uint32) (t tally, err error) {
	if m.ValueSize() == 8 {
		var perCPU []uint64
		if err = m.Lookup(index, &perCPU); err == nil {
			for _, n := range perCPU {
				t.packets += n
			}
		}
	} else {
		var perCPU []abi.Counter
		if err = m.Lookup(index, &perCPU); err == nil {
			for _, c := range perCPU {
				t = t.plus(tally{packets: c.Packets, bytes: c.Bytes})
			}
		}
	}
	if err != nil {
		return t, fmt.Errorf("read counter %d: %w", index, err)
	}
	return t, nil
}

// writeTally sets an element of such a map, on the first CPU.
func writeTally(m *ebpf.Map, index uint32, t tally) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	var perCPU any
	if m.ValueSize() == 8 {
		counts := make([]uint64, cpus)
		counts[0], perCPU = t.packets, counts
	} else {
		counts := make([]abi.Counter, cpus)
		counts[0], perCPU = abi.Counter{Packets: t.packets, Bytes: t.bytes}, counts
	}
	if err := m.Put(index, perCPU); err != nil {
		return fmt.Errorf("write counter %d: %w", index, err)
	}
	return nil
}

// forwarded is what has been forwarded to a backend, by its index.
func (k *kernel) forwarded(index uint32) (tally, error) {
	t, err := readTally(k.BackendCounters, index)
	opened, err2 := readTally(k.BackendOpened, index)
	t.opened = opened.packets
	return t, errors.Join(err, err2)
}

// events are how often each event of an enum has happened.
func (k *kernel) events(name string, names []string) (list []model.Tallied, err error) {
	for i, event := range names {
		t, err := k.counted(name, uint32(i))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", event, err)
		}
		list = append(list, model.Tallied{Name: event, Count: t.packets})
	}
	return list, nil
}

// clearForwarded makes an index's counters start at zero for the next backend with the index.
func (k *kernel) clearForwarded(index uint32) error {
	return errors.Join(writeTally(k.BackendOpened, index, tally{}), writeTally(k.BackendCounters, index, tally{}))
}
