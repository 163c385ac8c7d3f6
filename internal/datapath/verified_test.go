package datapath

import (
	"maps"
	"regexp"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
)

// The verifier gives up after a million instructions, which a small change can multiply, and takes
// 0.3 s for 200,000. While a process of another format loads its program, no other director's flows
// reach this host, and connections break. So a fifth of a million must be enough, on each kernel.
func TestVerifierHasRoom(t *testing.T) {
	t.Parallel()
	const most = 200_000
	for name, object := range map[string]string{"director": "director_bpfel.o", "director_steering": "director_bpfel.o", "director_vtep": "vtep_bpfel.o", "explain": "observe/observed_bpfel.o", "capture": "observe/capture_bpfel.o"} {
		spec, err := ebpf.LoadCollectionSpec(object)
		must(t, err)
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinNone
		}
		maps.DeleteFunc(spec.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
		c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
		must(t, err)
		t.Cleanup(c.Close)
		found := regexp.MustCompile(`processed (\d+) insns`).FindStringSubmatch(c.Programs[name].VerifierLog)
		if len(found) != 2 {
			t.Fatalf("%s: the verifier says %q", name, c.Programs[name].VerifierLog)
		}
		if n, err := strconv.Atoi(found[1]); err != nil || n > most {
			t.Errorf("%s: the verifier looks at %d instructions, and %d are to be enough (%v)", name, n, most, err)
		} else {
			t.Logf("%s: %d instructions", name, n)
		}
	}
}
