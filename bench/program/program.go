// Package program measures the director's program by itself: repeatedly on one packet of an
// established flow (BPF_PROG_TEST_RUN), beside programs that do the least that a forwarder can do.
// The maps are those of a running director.
//
// A repeated run does not reset the packet, so every program restores it (bench/bpf/bench.bpf.c).
// The cost of that is measured too, and subtracted.
package program

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/record"
)

// Way is a mode with all that it does to a packet.
type Way struct {
	Name   string
	mode   model.Mode
	snat   bool
	outer6 bool
	policy model.Policy
}

// Ways are all ways.
var Ways = []Way{
	{Name: "l2dsr", mode: model.L2DSR},
	{Name: "ipip", mode: model.IPIP}, {Name: "ipip6", mode: model.IPIP, outer6: true},
	{Name: "gue", mode: model.GUE}, {Name: "gue6", mode: model.GUE, outer6: true},
	{Name: "nat", mode: model.NAT}, {Name: "snat", mode: model.NAT, snat: true},
}

// Handing are ways to hand over a connection: a SYN is its only packet. Only comparisons of
// versions measure them.
var Handing = []Way{{Name: "redirect", mode: model.Redirect}, {Name: "redirect-round-robin", mode: model.Redirect, policy: model.RoundRobin}}

// What the ways are compared with: a program that swaps the MAC addresses, and one
// that moves the head by 20 bytes and writes Ethernet.
const (
	Swap = "swap"
	Move = "move"
)

// frameSize is the size of the packets, with FCS.
const frameSize = 128

// passes is how often each program has its turn in one measurement.
const passes = 3

// Bench is the programs, ready to run.
type Bench struct {
	port     *netlab.Port // where packets come in
	programs []*timed
	closers  []func() error
}

// New runs a director on a host of the lab, in which each way has a service, and
// loads the programs for packets of one family.
func New(ctx context.Context, lab *netlab.Lab, ipv6 bool) (_ *Bench, err error) {
	b := &Bench{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	way := waysTraffic(ipv6)
	cable, err := connect(lab, "", ipv6)
	if err != nil {
		return nil, err
	}
	b.port = cable.B
	director, err := process.StartDirector(cable.B.Host, config(way, Ways))
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, director.Stop)
	if err := director.Forwards(ctx); err != nil {
		return nil, err
	}
	maps, err := pinned(director.Pin)
	if err != nil {
		return nil, err
	}
	defer closeAll(maps)
	syns, packets, err := bothFrames(cable, way)
	if err != nil {
		return nil, err
	}
	return b, b.prepare(maps, syns, packets)
}

// prepare loads the programs, with a frame for each way.
func (b *Bench) prepare(maps map[string]*ebpf.Map, syns, packets [][]byte) error {
	for _, name := range []string{"bench_tx", "bench_swap", "bench_move", "bench_rewrite"} {
		if err := b.load(name, name, maps, packets[0], 0); err != nil {
			return err
		}
	}
	for n, way := range Ways {
		if way.snat {
			spec, err := loadBench()
			if err != nil {
				return fmt.Errorf("read the programs: %w", err)
			}
			if err := handshake(spec, maps, b.port, syns[n], packets[n]); err != nil {
				return fmt.Errorf("%s: begin a connection: %w", way.Name, err)
			}
		}
		if err := b.load(way.Name, way.program(), maps, packets[n], way.growth()); err != nil {
			return err
		}
		p := b.programs[len(b.programs)-1]
		if err := p.leavesItsPacket(b.port, p.frame); err != nil {
			return fmt.Errorf("%s: %w", way.Name, err)
		}
	}
	return nil
}

// Close forgets the programs and ends the director.
func (b *Bench) Close() error {
	var problems []error
	for _, p := range b.programs {
		problems = append(problems, p.Close())
	}
	for _, c := range b.closers {
		problems = append(problems, c())
	}
	return errors.Join(problems...)
}

// Measure returns how many nanoseconds per packet each way, and each program for comparison, takes,
// by name. All run in turns; the results are medians.
func (b *Bench) Measure(repeats int) (map[string]float64, error) {
	took := map[string][]float64{}
	for range passes {
		for _, p := range b.programs {
			r, err := p.run(b.port, p.frame, repeats)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			took[p.name] = append(took[p.name], float64(r.took.Nanoseconds()))
		}
	}
	median := func(name string) float64 { return record.Median(took[name]) }
	// A move and its reversal do the same work twice, in addition to the bare program.
	move, rewrite := (median("bench_move")-median("bench_tx"))/2, median("bench_rewrite")-median("bench_tx")
	costs := map[string]float64{Swap: median("bench_swap"), Move: median("bench_tx") + move}
	for _, way := range Ways {
		undo := map[string]float64{"bench_tunnel": move, "bench_restored": rewrite}[way.program()]
		costs[way.Name] = median(way.Name) - undo
	}
	return costs, nil
}
