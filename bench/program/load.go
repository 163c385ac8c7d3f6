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
	*ebpf.Program
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

// load loads a program with the director's maps, and what it needs to put this frame
// back as it was.
func (b *Bench) load(name, program string, maps map[string]*ebpf.Map, frame []byte, growth int) error {
	spec, err := loadBench()
	if err != nil {
		return fmt.Errorf("read the programs: %w", err)
	}
	for other := range spec.Programs {
		if other != program {
			delete(spec.Programs, other)
		}
	}
	if err := constants(spec, frame, growth); err != nil {
		return err
	}
	replacements := map[string]*ebpf.Map{}
	for name, m := range maps {
		// The director's limits made its maps' sizes.
		if spec.Maps[name] != nil {
			spec.Maps[name].MaxEntries = m.MaxEntries()
			replacements[name] = m
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	var verifier *ebpf.VerifierError
	switch {
	case errors.As(err, &verifier):
		return fmt.Errorf("load %s: %+v", program, verifier)
	case err != nil:
		return fmt.Errorf("load %s with the director's maps: %w", program, err)
	}
	b.closers = append(b.closers, func() error { collection.Close(); return nil })
	b.programs = append(b.programs, &timed{collection.DetachProgram(program), name, frame})
	return nil
}

func constants(spec *ebpf.CollectionSpec, frame []byte, growth int) error {
	var front [10]uint64
	for i := range front {
		front[i] = binary.NativeEndian.Uint64(frame[8*i:])
	}
	if err := spec.Variables["bench_front"].Set(front); err != nil {
		return fmt.Errorf("set bench_front: %w", err)
	}
	if err := spec.Variables["bench_growth"].Set(uint32(growth)); err != nil {
		return fmt.Errorf("set bench_growth: %w", err)
	}
	return nil
}
