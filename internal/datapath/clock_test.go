package datapath

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"weir.io/weir/internal/datapath/flows"
)

// clockMap has the time for programs under test, in nanoseconds; 0: the kernel's.
const clockMap = "test_clock"

// addClock lets the programs read [clockMap], so that time passes when a test says so. A machine
// that is slow or busy does not change what a test sees.
func addClock(spec *ebpf.CollectionSpec) {
	spec.Maps[clockMap] = &ebpf.MapSpec{Name: clockMap, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	for _, p := range spec.Programs {
		p.Instructions = readsClock(p.Instructions)
	}
}

// clocks are the helpers that tell the time, and the power of two of their unit, in nanoseconds. A jiffy
// is about a millisecond here.
var clocks = map[asm.BuiltinFunc]int32{asm.FnKtimeGetNs: 0, asm.FnKtimeGetCoarseNs: 0, asm.FnJiffies64: 20}

// readsClock replaces calls of the clocks' helpers, and lets all jumps lead where they led.
func readsClock(before asm.Instructions) asm.Instructions {
	var after asm.Instructions
	var places []int      // of the words of before, in words of after
	ends := map[int]int{} // of instructions, by their index in after: the word behind them, of before
	place := 0
	for _, ins := range before {
		read := asm.Instructions{ins}
		if shift, is := clocks[asm.BuiltinFunc(ins.Constant)]; ins.IsBuiltinCall() && is {
			read = asm.Instructions{
				asm.LoadMapValue(asm.R0, 0, 0).WithMetadata(ins.Metadata).WithReference(clockMap),
				asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord),
				asm.RSh.Imm(asm.R0, shift),
				asm.JNE.Imm(asm.R0, 0, ""),
				asm.BuiltinFunc(ins.Constant).Call(),
			}
			read[3].Offset = 1
		}
		for range ins.Width() {
			places = append(places, place)
		}
		if len(read) == 1 {
			ends[len(after)] = len(places)
		}
		for _, r := range read {
			place += int(r.Width())
		}
		after = append(after, read...)
	}
	for at, end := range ends {
		ins := &after[at]
		if ins.OpCode.Class().IsJump() && ins.OpCode.JumpOp() != asm.Call && ins.OpCode.JumpOp() != asm.Exit {
			ins.Offset = int16(places[end+int(ins.Offset)] - places[end-1] - 1)
		}
	}
	return after
}

// stopClock lets the programs' time stand still, from now on.
func (d *testDirector) stopClock(t testing.TB) {
	t.Helper()
	now, err := flows.Monotonic()
	must(t, err)
	d.clock = now
	d.put(t, clockMap, uint32(0), uint64(now))
}

// advance lets time pass for the programs.
func (d *testDirector) advance(t testing.TB, duration time.Duration) {
	t.Helper()
	d.clock += duration
	d.put(t, clockMap, uint32(0), uint64(d.clock))
}

// now is the programs' time in the tables' units of 2^30 ns.
func (d *testDirector) now() uint32 { return uint32(d.clock >> 30) }
