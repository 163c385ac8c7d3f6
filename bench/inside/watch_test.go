package inside

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// next returns an XDP program that sends every frame to the MAC address that an
// array's first element has.
func next(t *testing.T) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	hops, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hops.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R7, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Add.Imm(asm.R1, 6),
		asm.JGT.Reg(asm.R1, asm.R7, "out"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, hops.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.StoreMem(asm.R6, 0, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, 3).WithSymbol("out"), // XDP_TX
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program, hops
}

// A change is seen on all CPUs, after it was made.
func TestWatch(t *testing.T) {
	program, hops := next(t)
	wait, err := Watch(t.Context(), program, netip.MustParseAddr("198.18.0.1"), 80)
	if err != nil {
		t.Fatal(err)
	}
	if err := hops.Put(uint32(0), uint64(7)); err != nil {
		t.Fatal(err)
	}
	seen, err := wait()
	if err != nil {
		t.Fatal(err)
	}
	if seen.First.IsZero() || seen.Last.Before(seen.First) {
		t.Errorf("seen first at %v and last at %v", seen.First, seen.Last)
	}
}

func TestMemoryOfNothing(t *testing.T) {
	if _, err := Memory(t.TempDir()); !errors.Is(err, errNoMap) {
		t.Errorf("memory of no map: %v, want %v", err, errNoMap)
	}
}
