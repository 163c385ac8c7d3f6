package datapath

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// BenchmarkUnknownFlows runs packets of flows that nobody remembers against flow memory of the
// default size, all of whose places are others' established flows: a SYN and any other packet look
// in both buckets of their flow. What is reported is the program's own time for one packet, of which
// none comes twice.
func BenchmarkUnknownFlows(b *testing.B) {
	for _, flags := range []uint8{synFlag, ackFlag} {
		kind := map[uint8]string{synFlag: "SYN", ackFlag: "ACK"}[flags]
		b.Run(kind, func(b *testing.B) { benchmarkUnknown(b, flags) })
	}
}

func benchmarkUnknown(b *testing.B, flags uint8) {
	const places = model.DefaultFlows
	spec, err := loadDirector()
	must(b, err)
	before := mapSizes["flow_table"]
	mapSizes["flow_table"] = places / flows.Ways
	d := loadSpec(b, spec, "director")
	mapSizes["flow_table"] = before
	defer d.Close()
	w, s := flowWorld(model.TCP, true)
	d.fill(b, w)
	settings := d.world.abiSettings()
	settings.FlowBuckets = places / flows.Ways
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
	places := d.flowPlaces(b)
	for i := range places {
		places[i] = abi.FlowPlace{Seen: now, State: uint8(abi.FlowStateFLOW_ESTABLISHED), Backend: s.first, Service: s.index, Source: rand.Uint32(), SourcePort: uint16(rand.Uint32())}
	}
}
