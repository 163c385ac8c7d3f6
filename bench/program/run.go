package program

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

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
