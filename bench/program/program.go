// Package program measures the director's program by itself: repeatedly on one packet of an
// established flow (BPF_PROG_TEST_RUN), beside programs that do the least that a forwarder can do, or
// beside that of another version. The maps are those of a running director.
//
// A repeated run does not reset the packet, so what calls the director restores it
// (bench/bpf/again.bpf.c). The cost of that is measured too.
package program

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/bench/inside"
	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

// Ways are all ways of weir.
var Ways = []track.Subject{
	track.Weir(model.L2DSR, false, false),
	track.Weir(model.IPIP, false, false), track.Weir(model.IPIP, false, true),
	track.Weir(model.GUE, false, false), track.Weir(model.GUE, false, true),
	track.Weir(model.NAT, false, false), track.Weir(model.NAT, true, false),
}

// Handing are ways to hand over a connection: a SYN is its only packet. Only comparisons of
// versions measure them.
var Handing = []track.Subject{track.Weir(model.Redirect, false, false), handingInTurn()}

func handingInTurn() track.Subject {
	s := track.Handing(model.RoundRobin)
	s.Name = "redirect-round-robin"
	return s
}

// What the ways are compared with: a program that swaps the MAC addresses, and one
// that moves the head by 20 bytes and writes Ethernet.
const (
	Swap = "swap"
	Move = "move"
)

// frameSize is the size of the packets, with FCS.
const frameSize = 128

// medianPasses is how often each program has its turn in one measurement of a [Bench].
const medianPasses = 3

// tx is the program that does nothing but answer.
const tx = "tx"

// Bench is one version's program beside those that it is compared with.
type Bench struct{ *Versions }

// New runs a director of the version on a host of the lab, and loads its program for packets of one
// family.
func New(ctx context.Context, lab *netlab.Lab, ipv6 bool, version Version) (*Bench, error) {
	v, err := NewVersions(ctx, lab, ipv6, version)
	if err != nil {
		return nil, err
	}
	last := v.turns[len(v.turns)-1]
	for _, name := range []string{tx, Swap, Move} {
		v.turns = append(v.turns, &turn{running: last.running, frame: last.frame, subject: Subject{Way: name}, program: name})
	}
	return &Bench{v}, nil
}

// Measure returns how many nanoseconds per packet each way, and each program for comparison, takes,
// by name. All run in turns; the results are medians. A run calls the director once: what the
// kernel's harness takes is in the times of all of them.
func (b *Bench) Measure(ctx context.Context, repeats int) (map[string]float64, error) {
	took, err := b.times(ctx, medianPasses, repeats, 1)
	if err != nil {
		return nil, err
	}
	median := func(version, way string) float64 { return record.Median(took[Subject{Version: version, Way: way}]) }
	harness := median("", tx)
	// A move and its reversal do the same work twice, in addition to the bare program.
	costs := map[string]float64{Swap: median("", Swap), Move: harness + (median("", Move)-harness)/2}
	for _, way := range Ways {
		back := putBack[1]
		if way.Tunnels() {
			back = putBack[0]
		}
		costs[way.Name] = median(b.directors[0].Name, way.Name) - median("", back.Way) + harness
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

// run runs the program that often on a frame that came in by a queue of the port. The kernel measures the
// time, in whole nanoseconds: the wall clock would include the set-up of a test run, some 30 ms.
func (p program) run(port *netlab.Port, queue uint32, frame []byte, repeats int) (r result, err error) {
	err = port.Host.Do(func() error {
		r, err = p.repeat(port.Index, queue, frame, repeats)
		return err
	})
	return r, err
}

func (p program) repeat(ingress int, queue uint32, frame []byte, repeats int) (result, error) {
	out := make([]byte, len(frame)+128) // room for what tunnels add
	from := &metadata{end: uint32(len(frame)), ingress: uint32(ingress), queue: queue}
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
func (p program) leavesItsPacket(port *netlab.Port, queue uint32, frame []byte) error {
	r, err := p.run(port, queue, frame, 1000)
	if err != nil {
		return err
	}
	if !bytes.Equal(r.frame[12:], frame[12:]) {
		return fmt.Errorf("the packet % x is % x after many rounds", frame, r.frame)
	}
	return nil
}

// loadWith loads the spec with a director's maps.
func loadWith(spec *ebpf.CollectionSpec, maps inside.Maps) (*ebpf.Collection, error) {
	replacements := map[string]*ebpf.Map{}
	for name, shape := range spec.Maps {
		// The director's limits determine its maps' sizes.
		if m := maps.Named(name); m != nil {
			shape.MaxEntries = m.MaxEntries()
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

// frontOf is the beginning of a packet, see bench/bpf/restore.h.
func frontOf(frame []byte) (front [10]uint64) {
	for i := range front {
		front[i] = binary.NativeEndian.Uint64(frame[8*i:])
	}
	return front
}
