// Package program measures the director's program by itself: repeatedly on one packet of an
// established flow (BPF_PROG_TEST_RUN), beside programs that do the least that a forwarder can do.
// The maps are those of a running director.
//
// A repeated run does not reset the packet, so every program restores it (bench/bpf/bench.bpf.c).
// The cost of that is measured too, and subtracted.
package program

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

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
	director, err := process.RunDirector(ctx, cable.B.Host, config(way, Ways))
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, director.Stop)
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

// Verdicts: a packet that the kernel gets, and one that leaves where it came in.
const xdpPass, xdpTX = 2, 3

// errNotForwarded says that a program did something else with its packet.
var errNotForwarded = errors.New("the packet is not forwarded")

// testRun is the part of union bpf_attr (linux/bpf.h) for BPF_PROG_TEST_RUN. Package ebpf either
// takes a context or reports the time, and both are needed here: without a context the packet would
// come from lo, and leave by another interface.
type testRun struct {
	program, verdict uint32
	sizeIn, sizeOut  uint32
	dataIn, dataOut  unsafe.Pointer
	repeat, duration uint32 // nanoseconds of one run
	contextIn        uint32
	contextOut       uint32
	context          unsafe.Pointer
	contextBack      unsafe.Pointer
	flags, cpu       uint32
	batch, pad       uint32
}

// metadata is struct xdp_md.
type metadata struct {
	data, end, meta, ingress, queue, egress uint32
}

// program is a program that restores its packet.
type program struct{ *ebpf.Program }

type result struct {
	took    time.Duration // of one run
	verdict uint32
	frame   []byte
}

// run runs the program that often on a frame that came in by the port. The kernel measures the
// time, in whole nanoseconds: the wall clock would include the set-up of a test run, some 30 ms.
func (p program) run(port *netlab.Port, frame []byte, repeats int) (r result, err error) {
	err = port.Host.Do(func() error {
		r, err = p.repeat(port.Index, frame, repeats)
		return err
	})
	return r, err
}

func (p program) repeat(ingress int, frame []byte, repeats int) (result, error) {
	out := make([]byte, len(frame)+128) // room for what tunnels add
	from := &metadata{end: uint32(len(frame)), ingress: uint32(ingress)}
	attr := &testRun{program: uint32(p.FD()), sizeIn: uint32(len(frame)), sizeOut: uint32(len(out)), repeat: uint32(repeats),
		dataIn: unsafe.Pointer(&frame[0]), dataOut: unsafe.Pointer(&out[0]),
		contextIn: uint32(binary.Size(*from)), context: unsafe.Pointer(from)}
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
		if errno == unix.EINTR {
			continue // the collector stopped this thread, and the kernel began again
		}
		runtime.KeepAlive(p)
		if errno != 0 {
			return result{}, fmt.Errorf("run the program: %w", errno)
		}
		if attr.verdict != xdpTX {
			return result{verdict: attr.verdict}, fmt.Errorf("%w: verdict %d", errNotForwarded, attr.verdict)
		}
		return result{took: time.Duration(attr.duration), verdict: attr.verdict, frame: out[:attr.sizeOut]}, nil
	}
}

// leavesItsPacket says whether the program forwards the packet, and whether it is the same after
// many runs, except for the MAC addresses.
func (p program) leavesItsPacket(port *netlab.Port, frame []byte) error {
	r, err := p.run(port, frame, 1000)
	if err != nil {
		return err
	}
	if !bytes.Equal(r.frame[12:], frame[12:]) {
		return fmt.Errorf("the packet % x is % x after many rounds", frame, r.frame)
	}
	return nil
}

// timed is a program and the packet that it is run on.
type timed struct {
	program
	name  string
	frame []byte
}

// pinned opens all maps of a director.
func pinned(pin string) (map[string]*ebpf.Map, error) {
	files, err := filepath.Glob(filepath.Join(pin, "maps-*", "*"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("find the director's maps below %s: there are none", pin)
	}
	maps := map[string]*ebpf.Map{}
	for _, file := range files {
		m, err := ebpf.LoadPinnedMap(file, nil)
		if err != nil {
			closeAll(maps)
			return nil, fmt.Errorf("open the director's map %s: %w", filepath.Base(file), err)
		}
		maps[filepath.Base(file)] = m
	}
	return maps, nil
}

func closeAll(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		_ = m.Close() // only read
	}
}

// load loads a program with the director's maps, and with what it needs to restore this frame.
func (b *Bench) load(name, called string, maps map[string]*ebpf.Map, frame []byte, growth int) error {
	spec, err := loadBench()
	if err != nil {
		return fmt.Errorf("read the programs: %w", err)
	}
	for other := range spec.Programs {
		if other != called {
			delete(spec.Programs, other)
		}
	}
	if err := constants(spec, frame, growth); err != nil {
		return err
	}
	collection, err := loadWith(spec, maps)
	if err != nil {
		return fmt.Errorf("load %s: %w", called, err)
	}
	b.closers = append(b.closers, func() error { collection.Close(); return nil })
	b.programs = append(b.programs, &timed{program{collection.DetachProgram(called)}, name, frame})
	return nil
}

// loadWith loads the spec with a director's maps.
func loadWith(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map) (*ebpf.Collection, error) {
	replacements := map[string]*ebpf.Map{}
	for name, m := range maps {
		// The director's limits determine its maps' sizes.
		if spec.Maps[name] != nil {
			spec.Maps[name].MaxEntries = m.MaxEntries()
			replacements[name] = m
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return nil, fmt.Errorf("%+v", verifier)
	}
	return collection, err
}

func constants(spec *ebpf.CollectionSpec, frame []byte, growth int) error {
	if err := spec.Variables["bench_front"].Set(frontOf(frame)); err != nil {
		return fmt.Errorf("set bench_front: %w", err)
	}
	if err := spec.Variables["bench_growth"].Set(uint32(growth)); err != nil {
		return fmt.Errorf("set bench_growth: %w", err)
	}
	return nil
}

// frontOf is the beginning of a packet, see bench/bpf/restore.h.
func frontOf(frame []byte) (front [10]uint64) {
	for i := range front {
		front[i] = binary.NativeEndian.Uint64(frame[8*i:])
	}
	return front
}
