package inside

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// errNoMap says that a director has pinned no such map.
var errNoMap = errors.New("no such map is pinned")

// Memory returns the bytes that the kernel counts for all maps pinned in a director's
// directory.
func Memory(pin string) (uint64, error) { return memoryOf(pin, "*") }

// MapMemory returns the bytes that the kernel counts for one of them.
func MapMemory(pin, name string) (uint64, error) { return memoryOf(pin, name) }

func memoryOf(pin, name string) (uint64, error) {
	pins, err := filepath.Glob(filepath.Join(pin, "maps-*", name))
	if err != nil {
		return 0, err
	}
	if len(pins) == 0 {
		return 0, fmt.Errorf("%s below %s: %w", name, pin, errNoMap)
	}
	var sum uint64
	for _, path := range pins {
		bytes, err := mapMemory(path)
		if err != nil {
			return 0, fmt.Errorf("memory of %s: %w", path, err)
		}
		sum += bytes
	}
	return sum, nil
}

func mapMemory(path string) (uint64, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	bytes, _ := info.Memlock() // an empty trie takes none, and is said not to tell
	return bytes, nil
}
