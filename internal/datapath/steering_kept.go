package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// keptName is the directory of the pins in which it is noted which receive queues are kept for flows with rules.
// It is apart from the maps of a process, which go when the next one has others: the NIC keeps its rules.
const keptName = "steering"

func keptPin(pin string) string { return filepath.Join(pin, keptName, "queues") }

// keptQueue is a receive queue of an interface.
type keptQueue struct{ Interface, Queue uint32 }

// NoteKeptQueues notes which receive queues are kept, by interface, before they are, and until they are not. Of
// none there is no note.
func NoteKeptQueues(pin string, kept map[int][]uint32) error {
	if len(kept) == 0 {
		err := os.RemoveAll(filepath.Join(pin, keptName))
		if gone := os.Remove(pin); err == nil && gone != nil && !errors.Is(gone, fs.ErrNotExist) && !errors.Is(gone, unix.ENOTEMPTY) && !errors.Is(gone, unix.EEXIST) {
			err = gone
		}
		if err != nil {
			return fmt.Errorf("forget which receive queues were for steered flows: %w", err)
		}
		return nil
	}
	path := keptPin(pin)
	noted, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		noted, err = makeKept(path)
	}
	if err != nil {
		return fmt.Errorf("note which receive queues are for steered flows: %w", err)
	}
	defer noted.Close()
	wanted := map[keptQueue]uint8{}
	for link, queues := range kept {
		for _, q := range queues {
			wanted[keptQueue{uint32(link), q}] = 1
		}
	}
	have, err := readKept(noted)
	for queue := range wanted { // all new ones before old ones go
		err = errors.Join(err, noted.Put(queue, uint8(1)))
	}
	for queue := range have {
		if wanted[queue] == 0 {
			err = errors.Join(err, noted.Delete(queue))
		}
	}
	if err != nil {
		return fmt.Errorf("note which receive queues are for steered flows: %w", err)
	}
	return nil
}

func makeKept(path string) (*ebpf.Map, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "kept_queues", Type: ebpf.Hash, KeySize: 8, ValueSize: 1, MaxEntries: 2 * steeredInterfaces * steeredQueues})
	if err != nil {
		return nil, err
	}
	if err := m.Pin(path); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func readKept(m *ebpf.Map) (map[keptQueue]uint8, error) {
	have := map[keptQueue]uint8{}
	var queue keptQueue
	var value uint8
	entries := m.Iterate()
	for entries.Next(&queue, &value) {
		have[queue] = value
	}
	return have, entries.Err()
}

// notedQueues are those of the note; none if there is none.
func notedQueues(pin string, kept map[int][]uint32) error {
	m, err := ebpf.LoadPinnedMap(keptPin(pin), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	have, err := readKept(m)
	for queue := range have {
		kept[int(queue.Interface)] = append(kept[int(queue.Interface)], queue.Queue)
	}
	return err
}
