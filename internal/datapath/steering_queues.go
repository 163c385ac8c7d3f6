package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
)

// KeptQueues returns the receive queues that the director that is pinned in a directory keeps for steered
// flows, by the index of their interface. Rules that lead to them are this director's.
func KeptQueues(pin string) (map[int][]uint32, error) {
	kept := map[int][]uint32{}
	paths, err := filepath.Glob(filepath.Join(pin, mapsPrefix+"*", directorMapSteeredQueues))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if err := keptQueuesIn(path, kept); err != nil {
			return nil, fmt.Errorf("read which receive queues are for steered flows: %w", err)
		}
	}
	if err := notedQueues(pin, kept); err != nil {
		return nil, fmt.Errorf("read which receive queues are for steered flows: %w", err)
	}
	for link, queues := range kept {
		slices.Sort(queues)
		kept[link] = slices.Compact(queues)
	}
	return kept, nil
}

func keptQueuesIn(path string, kept map[int][]uint32) error {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer m.Close()
	if m.ValueSize() != uint32(unsafe.Sizeof(abi.SteeredQueue{})) {
		return nil // of another version
	}
	var place uint32
	var e abi.SteeredQueue
	entries := m.Iterate()
	for entries.Next(&place, &e) {
		if e.Interface != 0 {
			kept[int(e.Interface)] = append(kept[int(e.Interface)], place%steeredQueues)
		}
	}
	return entries.Err()
}

// byTable is what a queue has counted that no reason has: packets in l2dsr that did not take the usual way.
func byTable(at *abi.SteeredQueue) tally {
	// All of them last: packets are counted meanwhile.
	usual, bytes := atomic.LoadUint64(&at.Usual), atomic.LoadUint64(&at.UsualBytes)
	return tally{packets: max(atomic.LoadUint64(&at.Packets), usual) - usual, bytes: max(atomic.LoadUint64(&at.Bytes), bytes) - bytes}
}

// countedByTable sums it in a map of queues.
func countedByTable(m *ebpf.Map) (sum tally, err error) {
	var place uint32
	var e abi.SteeredQueue
	entries := m.Iterate()
	for entries.Next(&place, &e) {
		sum = sum.plus(byTable(&e))
	}
	if err := entries.Err(); err != nil {
		return sum, fmt.Errorf("read the counts of receive queues: %w", err)
	}
	return sum, nil
}

// queuesCounted sums it, in the maps of today and in those that are left.
func (k *kernel) queuesCounted() (sum tally, err error) {
	if k.SteeredQueues.MaxEntries() > 1 {
		if sum, err = countedByTable(k.SteeredQueues); err != nil {
			return sum, err
		}
	}
	for _, m := range k.formerQueues {
		before, err := countedByTable(m)
		if err != nil {
			return sum, err
		}
		sum = sum.plus(before)
	}
	return sum, nil
}

// formerQueues are maps of receive queues of other limits or other versions, by the paths of their pins.
type formerQueues map[string]*ebpf.Map

func (k *kernel) openFormerQueues() (formerQueues, error) {
	former := formerQueues{}
	paths, err := filepath.Glob(filepath.Join(k.pin, mapsPrefix+"*", directorMapSteeredQueues))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if k.adopted && filepath.Dir(path) == k.mapsDir() {
			continue // it is today's
		}
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open pinned map %s: %w", path, err), former.close())
		}
		if m.ValueSize() != uint32(unsafe.Sizeof(abi.SteeredQueue{})) || m.MaxEntries() == 1 {
			err = m.Close()
		} else {
			former[path] = m
		}
		if err != nil {
			return nil, errors.Join(err, former.close())
		}
	}
	return former, nil
}

// carryOver adds the counts to those that no program writes, when no program uses the maps any more.
func (f formerQueues) carryOver(reasons *ebpf.Map) error {
	const reason = uint32(abi.ReasonFORWARD_L2DSR)
	for path, m := range f {
		// The pin first, so that no count is carried over twice. It may be that of a map of today.
		if pinned, err := ebpf.LoadPinnedMap(path, nil); err == nil {
			same, err := sameMap(pinned, m)
			if err = errors.Join(err, pinned.Close()); err == nil && same {
				err = os.Remove(path)
			}
			if err != nil {
				return fmt.Errorf("remove pin of the receive queues before: %w", err)
			}
		}
		before, err := countedByTable(m)
		if err != nil {
			return err
		}
		carried, err := readTally(reasons, reasons.MaxEntries()/2+reason)
		if err != nil {
			return err
		}
		if err := writeTally(reasons, reasons.MaxEntries()/2+reason, carried.plus(before)); err != nil {
			return fmt.Errorf("carry the counts of receive queues over: %w", err)
		}
		delete(f, path)
		if err := m.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (f formerQueues) close() error {
	var errs []error
	for path, m := range f {
		errs = append(errs, m.Close())
		delete(f, path)
	}
	return errors.Join(errs...)
}

func sameMap(a, b *ebpf.Map) (bool, error) {
	first, err := a.Info()
	if err != nil {
		return false, err
	}
	second, err := b.Info()
	if err != nil {
		return false, err
	}
	one, _ := first.ID()
	other, _ := second.ID()
	return one == other, nil
}
