package datapath

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/packet"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types bench ../../bpf/bench.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu

// Each mode's cost per packet: TCP, established, one flow, in a service with 10
// backends and a ring of the default size, beside programs that do the least that
// a forwarder can do. All of them run in turns, so that a slow moment of the
// machine hits them alike; medians are reported, in nanoseconds, and the ratios'
// medians. Every program leaves the packet as it was, because repeats do not
// reset it: what that costs is measured too, and subtracted.
func BenchmarkModes(b *testing.B) {
	for _, way := range ways {
		for _, vip4 := range []bool{true, false} {
			if way.sameProto {
				way.over4 = vip4
			}
			family := map[bool]string{true: "4", false: "6"}
			b.Run(fmt.Sprintf("%s/vip=%s", way.name, family[vip4]), func(b *testing.B) { benchmarkMode(b, way, vip4) })
		}
	}
}

func benchmarkMode(b *testing.B, way wayTo, vip4 bool) {
	w := &testWorld{}
	s := scenario{client: clientOf(vip4), testService: w.add(benchService(way, vip4))}
	frame := build(s.data(200)...)
	d, program := loadMode(b, w, s, frame)
	s.begin(b, d)
	if action, out := d.run(b, frame, 0); action != xdpTX {
		b.Fatalf("verdict %d\n%s", action, packet.Describe(out))
	}

	// The packet must still be what it was after many rounds.
	before := d.read(b)
	if _, err := d.program.Run(&ebpf.RunOptions{Data: frame, Repeat: 1000}); err != nil {
		b.Fatal(err)
	}
	if got := d.read(b).since(before)[program.reason]; got.Packets != 1000 {
		b.Fatalf("%d of 1000 rounds were %s", got.Packets, program.reason)
	}

	rounds := map[string][]float64{}
	names := []string{"bench_tx", "bench_swap", "bench_move", "bench_rewrite", program.name}
	for b.Loop() {
		for _, name := range names {
			rounds[name] = append(rounds[name], nanoseconds(b, d.Programs[name], frame))
		}
	}
	b.ReportMetric(0, "ns/op")
	report := func(unit string, value func(round int) float64) {
		var values []float64
		for round := range rounds[program.name] {
			values = append(values, value(round))
		}
		b.ReportMetric(median(values), unit)
	}
	at := func(name string, round int) float64 { return rounds[name][round] }
	// A move and its undoing do the same work twice, beside the bare program.
	move := func(round int) float64 { return (at("bench_move", round) - at("bench_tx", round)) / 2 }
	undo := map[string]func(int) float64{
		"director":     func(int) float64 { return 0 },
		"bench_tunnel": move,
		"bench_nat":    func(round int) float64 { return at("bench_rewrite", round) - at("bench_tx", round) },
	}[program.name]
	cost := func(round int) float64 { return at(program.name, round) - undo(round) }
	moved := func(round int) float64 { return at("bench_tx", round) + move(round) }
	report("ns/packet", cost)
	report("ns/tx", func(round int) float64 { return at("bench_tx", round) })
	report("ns/swap", func(round int) float64 { return at("bench_swap", round) })
	report("ns/move", moved)
	report("x/swap", func(round int) float64 { return cost(round) / at("bench_swap", round) })
	report("x/move", func(round int) float64 { return cost(round) / moved(round) })
}

func benchService(way wayTo, vip4 bool) testService {
	const backends, slots = 10, 1021
	s := testService{vip: vipAddress(vip4, 1), protocol: model.TCP, port: singlePort(servicePort), salt: 0x1234}
	for i := range backends {
		s.backends = append(s.backends, testBackend{mode: way.mode, snat: way.snat, address: backendAddress(way.over4, i+1)})
		if way.mode == model.NAT {
			s.backends[i].port = backendPort
		}
	}
	for i := range slots {
		s.ring.Slots = append(s.ring.Slots, model.Slot{Owner: uint32(i % backends), Next: uint32((i + 1) % backends)})
	}
	return s
}

// benched is the program that runs a mode, and the reason that it must count.
type benched struct{ name, reason string }

// loadMode loads the programs for one mode and one frame.
func loadMode(b *testing.B, w *testWorld, s scenario, frame []byte) (*testDirector, benched) {
	b.Helper()
	program := benched{map[model.Mode]string{model.L2DSR: "director", model.IPIP: "bench_tunnel", model.GUE: "bench_tunnel", model.NAT: "bench_nat"}[s.backends[0].mode],
		reasonName(s.forward("", s.flow(), 0, s.data(0)...).reason)}
	spec, err := benchSpec(frame, growth(s.backends[0]))
	if err != nil {
		b.Fatal(err)
	}
	d := loadSpec(b, spec, program.name)
	b.Cleanup(d.Close)
	d.fill(b, w)
	return d, program
}

func benchSpec(frame []byte, growth int) (*ebpf.CollectionSpec, error) {
	spec, err := loadBench()
	if err != nil {
		return nil, err
	}
	var front [10]uint64
	for i := range front {
		front[i] = binary.NativeEndian.Uint64(frame[8*i:])
	}
	if err := spec.Variables["bench_front"].Set(front); err != nil {
		return nil, fmt.Errorf("set bench_front: %w", err)
	}
	if err := spec.Variables["bench_growth"].Set(uint32(growth)); err != nil {
		return nil, fmt.Errorf("set bench_growth: %w", err)
	}
	return spec, nil
}

// growth is how many bytes a mode adds.
func growth(b testBackend) int {
	outer := map[bool]int{true: 20, false: 40}[b.address.Is4()]
	switch b.mode {
	case model.IPIP:
		return outer
	case model.GUE:
		return outer + 8 + 4
	}
	return 0
}

// nanoseconds is what one run of the program takes, of many. The kernel measures
// it, in whole nanoseconds: the wall clock also has what a test run costs to set
// up, some 30 ms.
func nanoseconds(b *testing.B, p *ebpf.Program, frame []byte) float64 {
	_, took, err := p.Benchmark(frame, 500_000, nil)
	if err != nil {
		b.Fatal(err)
	}
	return float64(took.Nanoseconds())
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
