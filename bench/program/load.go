package program

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// timed is a program and the packet that it is run on.
type timed struct {
	program
	name  string
	frame []byte
}

// pinned opens all maps of a director.
func pinned(pin string) (map[string]*ebpf.Map, error) {
	files, err := filepath.Glob(filepath.Join(pin, "maps-*", "*"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("find the director's maps below %s: there are none", pin)
	}
	maps := map[string]*ebpf.Map{}
	for _, file := range files {
		m, err := ebpf.LoadPinnedMap(file, nil)
		if err != nil {
			closeAll(maps)
			return nil, fmt.Errorf("open the director's map %s: %w", filepath.Base(file), err)
		}
		maps[filepath.Base(file)] = m
	}
	return maps, nil
}

func closeAll(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		_ = m.Close() // only read
	}
}

// load loads a program with the director's maps, and with what it needs to restore this frame.
func (b *Bench) load(name, called string, maps map[string]*ebpf.Map, frame []byte, growth int) error {
	spec, err := loadBench()
	if err != nil {
		return fmt.Errorf("read the programs: %w", err)
	}
	for other := range spec.Programs {
		if other != called {
			delete(spec.Programs, other)
		}
	}
	if err := constants(spec, frame, growth); err != nil {
		return err
	}
	collection, err := loadWith(spec, maps)
	if err != nil {
		return fmt.Errorf("load %s: %w", called, err)
	}
	b.closers = append(b.closers, func() error { collection.Close(); return nil })
	b.programs = append(b.programs, &timed{program{collection.DetachProgram(called)}, name, frame})
	return nil
}

// loadWith loads the spec with a director's maps.
func loadWith(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map) (*ebpf.Collection, error) {
	replacements := map[string]*ebpf.Map{}
	for name, m := range maps {
		// The director's limits determine its maps' sizes.
		if spec.Maps[name] != nil {
			spec.Maps[name].MaxEntries = m.MaxEntries()
			replacements[name] = m
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return nil, fmt.Errorf("%+v", verifier)
	}
	return collection, err
}

func constants(spec *ebpf.CollectionSpec, frame []byte, growth int) error {
	if err := spec.Variables["bench_front"].Set(frontOf(frame)); err != nil {
		return fmt.Errorf("set bench_front: %w", err)
	}
	if err := spec.Variables["bench_growth"].Set(uint32(growth)); err != nil {
		return fmt.Errorf("set bench_growth: %w", err)
	}
	return nil
}

// frontOf is the beginning of a packet, see bench/bpf/restore.h.
func frontOf(frame []byte) (front [10]uint64) {
	for i := range front {
		front[i] = binary.NativeEndian.Uint64(frame[8*i:])
	}
	return front
}
