package datapath

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
)

// Programs of a second object are refused if they would read the director's maps as something else.
func TestProgramsOfTwoObjectsShareEqualMaps(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(tc *ebpf.CollectionSpec)
		err    string // empty: none
	}{
		{"as they are", func(*ebpf.CollectionSpec) {}, ""},
		{"constants", func(tc *ebpf.CollectionSpec) {
			tc.Maps[bpfload.Constants] = &ebpf.MapSpec{Name: bpfload.Constants, Type: ebpf.Array, KeySize: 4, ValueSize: 64, MaxEntries: 1}
		}, "constants"},
		{"a map of their own", func(tc *ebpf.CollectionSpec) {
			tc.Maps["own"] = &ebpf.MapSpec{Name: "own", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
		}, "no map own"},
		{"another type", func(tc *ebpf.CollectionSpec) { tc.Maps[directorMapBackends].Type = ebpf.Hash }, "map backends differs"},
		{"another key", func(tc *ebpf.CollectionSpec) { tc.Maps[directorMapBackends].KeySize++ }, "map backends differs"},
		{"another value", func(tc *ebpf.CollectionSpec) { tc.Maps[directorMapBackends].ValueSize++ }, "map backends differs"},
		{"other flags", func(tc *ebpf.CollectionSpec) { tc.Maps[directorMapBackends].Flags ^= 1 }, "map backends differs"},
		{"a program of the director's name", func(tc *ebpf.CollectionSpec) {
			tc.Programs[directorProgDirector] = tc.Programs[natTCProgUndoNat]
		}, "program director, too"},
	} {
		t.Run(test.name, func(t *testing.T) {
			spec, err := loadDirector()
			if err != nil {
				t.Fatal(err)
			}
			tc, err := loadNatTC()
			if err != nil {
				t.Fatal(err)
			}
			test.change(tc)
			err = addPrograms(spec, tc)
			switch {
			case test.err == "" && err != nil:
				t.Fatal(err)
			case test.err == "" && spec.Programs[natTCProgUndoNat] == nil:
				t.Error("the tc programs are missing")
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("error %v, want one with %q", err, test.err)
			}
		})
	}
}
