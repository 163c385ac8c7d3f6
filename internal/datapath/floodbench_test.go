package datapath

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// BenchmarkUnknownFlows runs packets of flows that nobody remembers against flow memory
// of the default size, all of whose entries are others' established flows, divided among
// few and many CPUs: a SYN looks in its own CPU's bucket, any other packet in everybody's.
// What is reported is the program's own time for one packet, of which none comes twice.
func BenchmarkUnknownFlows(b *testing.B) {
	for _, cpus := range []uint32{2, 16, 64} {
		for _, flags := range []uint8{synFlag, ackFlag} {
			kind := map[uint8]string{synFlag: "SYN", ackFlag: "ACK"}[flags]
			b.Run(fmt.Sprintf("%s, %d CPUs", kind, cpus), func(b *testing.B) { benchmarkUnknown(b, cpus, flags) })
		}
	}
}

func benchmarkUnknown(b *testing.B, cpus uint32, flags uint8) {
	const entries = model.DefaultFlows
	spec, err := loadDirector()
	must(b, err)
	before := mapSizes["flows"]
	mapSizes["flows"], mapSizes["flow_tags"] = entries/flows.Ways, entries/flows.Ways
	d := loadSpec(b, spec, "director")
	mapSizes["flows"], mapSizes["flow_tags"] = before, before
	defer d.Close()
	w, s := flowWorld(model.TCP, true)
	d.fill(b, w)
	settings := d.world.abiSettings()
	settings.FlowCpus, settings.FlowBuckets = cpus, entries/flows.Ways/cpus
	d.put(b, "this_director", uint32(0), settings)
	d.occupy(b, s)
	frame := build(ip(s.client, s.vip), s.segment4(0, servicePort, flags), packet.Text("x"))
	var total time.Duration
	n := 0
	onCPU(b, 0, func() {
		for b.Loop() {
			binary.BigEndian.PutUint32(frame[26:], rand.Uint32()) // nobody checks sums
			_, took, err := d.program.Benchmark(frame, 1, nil)
			must(b, err)
			total, n = total+took, n+1
		}
	})
	b.ReportMetric(float64(total.Nanoseconds())/float64(n), "program-ns/packet")
}

// occupy fills all of flow memory with established flows.
func (d *testDirector) occupy(b *testing.B, s scenario) {
	now, err := flows.Clock()
	must(b, err)
	for i := range d.flowEntries(b) {
		e := &d.flowEntries(b)[i]
		e.Seen, e.State, e.Backend, e.Service = now, uint8(abi.FlowStateFLOW_ESTABLISHED), s.first, s.index
		binary.NativeEndian.PutUint64((*[8]byte)(unsafe.Pointer(&e.Source))[:], rand.Uint64())
	}
	tags, err := bpfload.Map[uint8](d.Maps["flow_tags"])
	must(b, err)
	defer tags.Close()
	for i := range tags.Entries {
		tags.Entries[i] = uint8(2 + rand.IntN(254))
	}
}
