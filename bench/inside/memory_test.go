package inside

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
)

// pinned makes a map of that many bytes in values, and pins it at these places.
func pinned(t *testing.T, size uint32, paths ...string) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: size, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, path := range paths {
		clone, err := m.Clone()
		if err != nil {
			t.Fatal(err)
		}
		defer clone.Close()
		if err := clone.Pin(path); err != nil {
			t.Fatal(err)
		}
	}
}

// Maps that another version may take over are pinned twice, and maps that no program uses lie
// beside the others: each map is counted once.
func TestMemoryCountsEachMapOnce(t *testing.T) {
	pin, err := os.MkdirTemp("/sys/fs/bpf", "inside-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(pin); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"maps-abi", "state"} {
		if err := os.Mkdir(filepath.Join(pin, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Memory(pin); !errors.Is(err, errNoMap) {
		t.Errorf("the memory of no map: %v", err)
	}
	const page = 4096
	pinned(t, 16*page, filepath.Join(pin, "maps-abi", "flows"), filepath.Join(pin, "state", "flows-1a2b"))
	flows, err := Memory(pin)
	if err != nil || flows < 16*page || flows >= 2*16*page {
		t.Errorf("a map of 16 pages that is pinned twice takes %d bytes (%v)", flows, err)
	}
	pinned(t, 64*page, filepath.Join(pin, "state", "snat_table-3c4d"))
	both, err := Memory(pin)
	if err != nil || both < flows+64*page {
		t.Errorf("with a map of 64 pages more it is %d bytes (%v), and was %d", both, err, flows)
	}
	one, err := MapMemory(pin, "snat_table")
	if err != nil || one != both-flows {
		t.Errorf("that map alone takes %d bytes (%v), want %d", one, err, both-flows)
	}
	if _, err := MapMemory(pin, "none"); !errors.Is(err, errNoMap) {
		t.Errorf("the memory of a map that there is not: %v", err)
	}
}
