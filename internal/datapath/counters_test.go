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

// reading is counters of the director at one moment, by map: the first ones of each.
type reading map[string][]abi.Counter

// labels name the counters of each map.
var labels = map[string]func(int) string{
	"reasons":          func(i int) string { return reasonName(abi.Reason(i)) },
	"backend_counters": func(i int) string { return fmt.Sprintf("backend %d", i) },
	"service_drops":    func(i int) string { return fmt.Sprintf("drops of service %d", i) },
}

// read reads the counters of every reason, and of the world's backends and services with some places
// behind them: emulated machines take most of their time for the counters of a test. See readAll.
func (d *testDirector) read(t testing.TB) reading {
	t.Helper()
	const spare = 16
	backends, services := uint32(1), uint32(len(d.world.services))
	if services > 0 {
		last := d.world.services[services-1]
		backends = last.first + uint32(len(last.backends))
	}
	return reading{
		"reasons":          d.readMap(t, "reasons", d.Maps["reasons"].MaxEntries()),
		"backend_counters": d.readMap(t, "backend_counters", backends+spare),
		"service_drops":    d.readMap(t, "service_drops", services+spare),
	}
}

// readAll reads every counter that there is.
func (d *testDirector) readAll(t testing.TB) reading {
	t.Helper()
	out := reading{}
	for name := range labels {
		out[name] = d.readMap(t, name, d.Maps[name].MaxEntries())
	}
	return out
}

// readMap reads the first counters of a map.
func (d *testDirector) readMap(t testing.TB, name string, n uint32) []abi.Counter {
	t.Helper()
	size := int(min(n, d.Maps[name].MaxEntries()))
	keys, values := make([]uint32, size), make([]abi.Counter, size*d.cpus)
	var cursor ebpf.MapBatchCursor
	if n, err := d.Maps[name].BatchLookup(&cursor, keys, values, nil); n < size {
		t.Fatalf("read %s: %d of %d: %v", name, n, size, err)
	}
	sums := make([]abi.Counter, size)
	for i, key := range keys {
		for _, v := range values[i*d.cpus : (i+1)*d.cpus] {
			sums[key].Packets += v.Packets
			sums[key].Bytes += v.Bytes
		}
	}
	if name == "reasons" && d.queue != 0 {
		by := byTable(new(d.queueCounts(t))) // the receive queue counts some itself
		sums[abi.ReasonFORWARD_L2DSR].Packets += by.packets
		sums[abi.ReasonFORWARD_L2DSR].Bytes += by.bytes
	}
	return sums
}

// without returns the counters that another reading does not have.
func (r reading) without(other reading) reading {
	out := reading{}
	for name, counters := range r {
		out[name] = slices.Clone(counters)
		clear(out[name][:len(other[name])])
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
