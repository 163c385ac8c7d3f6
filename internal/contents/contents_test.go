package contents

import (
	"maps"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A full map takes other entries in the place of those that go, whether or not it is known what it has.
func TestReplaceInFullMap(t *testing.T) {
	type key struct{ Bits, Value uint32 }
	const room = 8
	entries := func(from, count uint32) map[key]uint32 {
		want := map[key]uint32{}
		for i := range count {
			want[key{32, from + i}] = i
		}
		return want
	}
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.LPMTrie} {
		t.Run(kind.String(), func(t *testing.T) {
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: 8, ValueSize: 4, MaxEntries: room, Flags: unix.BPF_F_NO_PREALLOC})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			wants := func(when string, want map[key]uint32, byHand int, err error) {
				t.Helper()
				have, failed := Read[key, uint32](m)
				if err != nil || failed != nil || byHand != 0 || !maps.Equal(have, want) {
					t.Errorf("%s: %v, %v, %d by hand, the map has %v, want %v", when, err, failed, byHand, have, want)
				}
			}
			first, second, third := entries(1, room), entries(3, room), entries(100, room)
			byHand, err := Replace(m, first, nil)
			wants("nothing is known of an empty map", first, byHand, err)
			byHand, err = Replace(m, second, first)
			wants("two of eight are others", second, byHand, err)
			byHand, err = Replace(m, third, nil)
			wants("all are others, and nothing is known", third, byHand, err)
			byHand, err = Replace(m, first, third)
			wants("all are others", first, byHand, err)
			if _, err := Replace(m, entries(1, room+1), first); !isFull(err) {
				t.Errorf("more than the map has room for: %v", err)
			}
		})
	}
}
