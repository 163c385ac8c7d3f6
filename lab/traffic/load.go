package traffic

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// load loads one program, and the maps that it uses, with these constants and sizes.
func load(program string, constants map[string]any, sizes map[string]int, into any) error {
	// Before Linux 5.11 this limits the memory of maps; without the right to lift it the loader
	// says what is missing.
	_ = rlimit.RemoveMemlock()
	spec, err := loadTraffic()
	if err != nil {
		return fmt.Errorf("read the traffic programs: %w", err)
	}
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	for name, size := range sizes {
		spec.Maps[name].MaxEntries = uint32(max(size, 1))
	}
	if err := spec.LoadAndAssign(into, nil); err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) {
			return fmt.Errorf("load %s: %+v", program, verifier)
		}
		return fmt.Errorf("load %s: %w", program, err)
	}
	return nil
}
