package datapath

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
)

// reading is every counter of the director at one moment, by map.
type reading map[string][]abi.Counter

// labels name the counters of each map.
var labels = map[string]func(int) string{
	"reasons":          func(i int) string { return reasonName(abi.Reason(i)) },
	"backend_counters": func(i int) string { return fmt.Sprintf("backend %d", i) },
	"service_drops":    func(i int) string { return fmt.Sprintf("drops of service %d", i) },
}

func (d *testDirector) read(t testing.TB) reading {
	t.Helper()
	out := reading{}
	for name := range labels {
		m := d.Maps[name]
		size := int(m.MaxEntries())
		keys, values := make([]uint32, size), make([]abi.Counter, size*d.cpus)
		var cursor ebpf.MapBatchCursor
		if n, err := m.BatchLookup(&cursor, keys, values, nil); n < size {
			t.Fatalf("read %s: %d of %d: %v", name, n, size, err)
		}
		sums := make([]abi.Counter, size)
		for i, key := range keys {
			for _, v := range values[i*d.cpus : (i+1)*d.cpus] {
				sums[key].Packets += v.Packets
				sums[key].Bytes += v.Bytes
			}
		}
		out[name] = sums
	}
	return out
}

// counts are counters by their names, without those that are zero.
type counts map[string]abi.Counter

// since returns what was counted after an earlier reading.
func (r reading) since(before reading) counts {
	out := counts{}
	for name, counters := range r {
		for i, now := range counters {
			if was := before[name][i]; now != was {
				out[labels[name](i)] = abi.Counter{Packets: now.Packets - was.Packets, Bytes: now.Bytes - was.Bytes}
			}
		}
	}
	return out
}

func (c counts) String() string {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%s: %d packets, %d bytes; ", name, c[name].Packets, c[name].Bytes)
	}
	return b.String()
}
