package inside

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// errNoMap says that a director has pinned no such map.
var errNoMap = errors.New("no such map is pinned")

var errNoID = errors.New("the kernel gives the map no number")

// Maps are a director's maps, by their names.
type Maps map[string]*ebpf.Map

// OpenMaps opens all maps that only the director's own version can use, pinned in its directory.
func OpenMaps(pin string) (Maps, error) {
	files, err := filepath.Glob(filepath.Join(pin, "maps-*", "*"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("find the director's maps below %s: %w", pin, errors.Join(err, errNoMap))
	}
	maps := Maps{}
	for _, file := range files {
		m, err := ebpf.LoadPinnedMap(file, nil)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open the director's map %s: %w", filepath.Base(file), err), maps.Close())
		}
		maps[filepath.Base(file)] = m
	}
	return maps, nil
}

// Named returns the map of a name in a program; nil: there is none. A section of data has another name where it
// is pinned.
func (maps Maps) Named(name string) *ebpf.Map {
	return maps[strings.ReplaceAll(strings.TrimPrefix(name, "."), ".", "-")]
}

// Close closes the maps.
func (maps Maps) Close() error {
	var errs []error
	for _, m := range maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Memory returns the bytes that the kernel counts for all maps pinned in a director's
// directory.
func Memory(pin string) (uint64, error) {
	return memoryOf(filepath.Join(pin, "maps-*", "*"), filepath.Join(pin, "state", "*"))
}

// MapMemory returns the bytes that the kernel counts for one of these maps. A map that another
// version may take over has its format behind its name.
func MapMemory(pin, name string) (uint64, error) {
	return memoryOf(filepath.Join(pin, "maps-*", name), filepath.Join(pin, "state", name+"-*"))
}

// memoryOf adds up the maps that are pinned where these patterns say. A map may be pinned twice.
func memoryOf(patterns ...string) (uint64, error) {
	bytes := map[ebpf.MapID]uint64{}
	for _, pattern := range patterns {
		pins, err := filepath.Glob(pattern)
		if err != nil {
			return 0, err
		}
		for _, path := range pins {
			id, size, err := mapMemory(path)
			if err != nil {
				return 0, fmt.Errorf("memory of %s: %w", path, err)
			}
			bytes[id] = size
		}
	}
	if len(bytes) == 0 {
		return 0, fmt.Errorf("%s: %w", strings.Join(patterns, ", "), errNoMap)
	}
	var sum uint64
	for _, size := range bytes {
		sum += size
	}
	return sum, nil
}

func mapMemory(path string) (ebpf.MapID, uint64, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return 0, 0, err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, 0, err
	}
	id, found := info.ID()
	if !found {
		return 0, 0, errNoID
	}
	bytes, _ := info.Memlock() // an empty trie takes none, which looks as if it were unknown
	return id, bytes, nil
}
