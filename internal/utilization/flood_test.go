package utilization

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// flood is a source of frames and a sink that drops them, on one CPU:
//
//	source --- sink
//
// Running a program in a test patches the code by which the kernel calls XDP
// programs. The emulator that other kernels are tested on does not always survive it
// when another CPU is in that code.
type flood struct {
	t          *testing.T
	source     *netlab.Host
	program    *ebpf.Program
	attachment link.Link
}

// floodCPU is CPU 0.
var floodCPU = unix.CPUSet{1}

func newFlood(t *testing.T, threaded bool) *flood {
	t.Helper()
	lab := netlab.ForTest(t)
	source, sink := lab.Host("source"), lab.Host("sink")
	for _, h := range []*netlab.Host{source, sink} {
		h.Sysctl("net.ipv6.conf.default.disable_ipv6", "1") // its multicast would be counted too
	}
	// The name distinguishes its thread from those of other labs; a longer one would be cut off.
	l := lab.Link(source, sink, netlab.LinkOptions{XDP: true, NameB: fmt.Sprintf("f%06d", os.Getpid()%1e6)})
	f := &flood{t: t, source: source}
	f.program = xdp(t, asm.Mov.Imm(asm.R1, int32(l.A.Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call())
	drop := xdp(t, asm.Mov.Imm(asm.R0, 1)) // XDP_DROP
	err := sink.Do(func() (err error) {
		f.attachment, err = link.AttachXDP(link.XDPOptions{Program: drop, Interface: l.B.Index, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.attachment.Close() })
	if threaded {
		f.thread(l.B)
	}
	return f
}

// xdp loads a program that ends with these instructions' result.
func xdp(t *testing.T, instructions ...asm.Instruction) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: append(instructions, asm.Return())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// thread makes the receiving side of a port a kernel thread of the flood's CPU.
func (f *flood) thread(port *netlab.Port) {
	f.t.Helper()
	sys := filepath.Join(port.Host.Dir(), "sys")
	err := port.Host.Do(func() error {
		if err := os.Mkdir(sys, 0o755); err != nil {
			return err
		}
		// A mount of sysfs shows the devices of the namespace that it is made in.
		if err := unix.Mount("sysfs", sys, "sysfs", 0, ""); err != nil {
			return err
		}
		defer func() { _ = unix.Unmount(sys, unix.MNT_DETACH) }() // otherwise the lab does it
		return os.WriteFile(filepath.Join(sys, "class/net", port.Name, "threaded"), []byte("1"), 0o644)
	})
	if err != nil {
		f.t.Fatalf("make NAPI of %s a thread: %v", port.Name, err)
	}
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(text), "napi/"+port.Name+"-") {
			continue // another thread, or gone
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil {
			err = unix.SchedSetaffinity(pid, &floodCPU)
		}
		if err != nil {
			f.t.Fatalf("move NAPI of %s to CPU 0: %v", port.Name, err)
		}
	}
}

// send sends that many frames as fast as possible.
func (f *flood) send(frames int) {
	f.t.Helper()
	err := f.source.Do(func() error {
		var before unix.CPUSet
		if err := unix.SchedGetaffinity(0, &before); err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(0, &floodCPU); err != nil {
			return err
		}
		defer func() { _ = unix.SchedSetaffinity(0, &before) }() // it worked before
		_, err := f.program.Run(&ebpf.RunOptions{Data: make([]byte, 60), Repeat: uint32(frames),
			Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, BatchSize: 64})
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
}
