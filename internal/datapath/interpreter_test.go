package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// interpreter runs the director's compiled program in this process, and sees which instructions a
// packet takes: the kernel does not tell. Maps are the kernel's; what the program writes into them
// stays here. It knows the helpers that packets of open and of new connections call.
type interpreter struct {
	instructions asm.Instructions
	symbols      map[string]int // where functions begin
	raw          []int          // where an instruction is, in words of eight bytes
	at           map[int]int    // and back
	maps         map[string]*ebpf.Map
	kept         map[string][]byte // what a CPU remembers from one packet to the next; nil: nothing
	clock        time.Duration     // the kernel's
	link, queue  uint32            // that packets come in by; 0: lo

	regions  []*region
	values   map[string]uint64 // of maps, by map and key
	handles  []*ebpf.Map       // what the program has as a map
	context  *region
	packet   *region
	begin    int         // of the frame, in the packet's region
	executed map[int]int // how often, by instruction
}

// region is memory that the program has an address of.
type region struct {
	base  uint64
	bytes []byte
}

// Registers have 64 bits: the upper half of an address says which region it is in.
const (
	regionShift    = 32
	regionMiddle   = 1 << 31 // of the lower half: an address may be before its region
	stackBytes     = 512
	frameHeadroom  = 256
	mapHandle      = 0xffff << 48
	functionHandle = 0xfffe << 48
)

// The fields of struct xdp_md.
const (
	contextData    = 0
	contextEnd     = 4
	contextMeta    = 8
	contextIngress = 12
	contextQueue   = 16
)

func newInterpreter(program *ebpf.ProgramSpec, maps map[string]*ebpf.Map, clock time.Duration) (*interpreter, error) {
	in := &interpreter{instructions: program.Instructions, at: map[int]int{}, maps: maps, clock: clock}
	var err error
	if in.symbols, err = in.instructions.SymbolOffsets(); err != nil {
		return nil, err
	}
	raw := 0
	for i := range in.instructions {
		in.raw = append(in.raw, raw)
		in.at[raw] = i
		raw += int(in.instructions[i].Width())
	}
	return in, nil
}

// stop is why the interpreter cannot go on.
type stop struct{ error }

func (in *interpreter) stop(pc int, format string, args ...any) {
	panic(stop{fmt.Errorf("instruction %d, %v: %s", pc, in.instructions[pc], fmt.Sprintf(format, args...))})
}

// run returns the verdict on a frame, and the frame that leaves.
func (in *interpreter) run(frame []byte) (verdict uint32, out []byte, err error) {
	in.regions, in.values, in.handles = nil, map[string]uint64{}, nil
	in.executed = map[int]int{}
	in.packet = in.region(append(make([]byte, frameHeadroom), frame...))
	in.begin = frameHeadroom
	defer func() {
		if r := recover(); r != nil {
			s, known := r.(stop)
			if !known {
				panic(r)
			}
			err = s.error
		}
	}()
	in.context = in.region(nil)
	verdict = uint32(in.function(0, [5]uint64{in.context.base}))
	return verdict, in.packet.bytes[in.begin:], nil
}

func (in *interpreter) region(bytes []byte) *region {
	r := &region{base: uint64(len(in.regions)+1)<<regionShift + regionMiddle, bytes: bytes}
	in.regions = append(in.regions, r)
	return r
}

// memory is what is at an address.
func (in *interpreter) memory(pc int, address uint64, size int) []byte {
	n := int(address>>regionShift) - 1
	if n < 0 || n >= len(in.regions) {
		in.stop(pc, "%#x is no address", address)
	}
	r := in.regions[n]
	offset := int(address - r.base)
	if offset < 0 || offset+size > len(r.bytes) {
		in.stop(pc, "%d bytes at %d of %d", size, offset, len(r.bytes))
	}
	return r.bytes[offset : offset+size]
}

func (in *interpreter) load(pc int, address uint64, size int) uint64 {
	switch address - in.context.base {
	case contextData, contextMeta:
		return in.packet.base + uint64(in.begin)
	case contextEnd:
		return in.packet.base + uint64(len(in.packet.bytes))
	case contextIngress:
		return uint64(max(in.link, ingress))
	case contextQueue:
		return uint64(in.queue)
	}
	at := in.memory(pc, address, size)
	switch size {
	case 1:
		return uint64(at[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(at))
	case 4:
		return uint64(binary.LittleEndian.Uint32(at))
	}
	return binary.LittleEndian.Uint64(at)
}

func (in *interpreter) store(pc int, address uint64, size int, value uint64) {
	at := in.memory(pc, address, size)
	for i := range at {
		at[i] = byte(value >> (8 * i))
	}
}

// function runs a function of the program, with a stack of its own.
func (in *interpreter) function(pc int, arguments [5]uint64) uint64 {
	var r [11]uint64
	copy(r[1:], arguments[:])
	r[asm.R10] = in.region(make([]byte, stackBytes)).base + stackBytes
	for {
		ins := &in.instructions[pc]
		in.executed[pc]++
		next := pc + 1
		switch class := ins.OpCode.Class(); class {
		case asm.LdClass:
			r[ins.Dst] = in.constant(pc, ins)
		case asm.LdXClass:
			r[ins.Dst] = in.load(pc, r[ins.Src]+uint64(int64(ins.Offset)), ins.OpCode.Size().Sizeof())
		case asm.StClass:
			in.store(pc, r[ins.Dst]+uint64(int64(ins.Offset)), ins.OpCode.Size().Sizeof(), uint64(ins.Constant))
		case asm.StXClass:
			if ins.OpCode.AtomicOp() != asm.InvalidAtomic {
				in.atomic(pc, ins, &r)
			} else {
				in.store(pc, r[ins.Dst]+uint64(int64(ins.Offset)), ins.OpCode.Size().Sizeof(), r[ins.Src])
			}
		case asm.ALUClass, asm.ALU64Class:
			r[ins.Dst] = in.calculate(pc, ins, r[ins.Dst], r[ins.Src&0xf])
		case asm.JumpClass, asm.Jump32Class:
			switch op := ins.OpCode.JumpOp(); {
			case op == asm.Exit:
				return r[asm.R0]
			case ins.IsFunctionCall():
				r[asm.R0] = in.function(in.symbols[ins.Reference()], [5]uint64(r[1:6]))
			case op == asm.Call:
				r[asm.R0] = in.helper(pc, ins, r)
			case in.jumps(pc, ins, &r):
				var found bool
				if next, found = in.at[in.raw[pc]+1+int(ins.Offset)]; !found {
					in.stop(pc, "a jump to no instruction")
				}
			}
		}
		pc = next
	}
}

func (in *interpreter) constant(pc int, ins *asm.Instruction) uint64 {
	switch {
	case ins.IsLoadFromMap() && ins.Src == asm.PseudoMapValue:
		return in.value(pc, in.maps[ins.Reference()], []byte{0, 0, 0, 0}) + uint64(ins.Constant)>>32
	case ins.IsLoadFromMap():
		return in.handle(in.maps[ins.Reference()])
	case ins.IsLoadOfFunctionPointer():
		return functionHandle | uint64(in.symbols[ins.Reference()])
	}
	return uint64(ins.Constant)
}

func (in *interpreter) handle(m *ebpf.Map) uint64 {
	in.handles = append(in.handles, m)
	return mapHandle | uint64(len(in.handles)-1)
}

// value is the address of a map's value; 0: there is none.
func (in *interpreter) value(pc int, m *ebpf.Map, key []byte) uint64 {
	name := fmt.Sprintf("%d/%x", m.FD(), key)
	if address, known := in.values[name]; known {
		return address
	}
	address, err := uint64(0), error(nil)
	switch m.Type() {
	case ebpf.PerCPUArray: // of a CPU that has counted nothing yet
		bytes, known := in.kept[name]
		if !known {
			bytes = make([]byte, m.ValueSize())
		}
		if in.kept != nil {
			in.kept[name] = bytes
		}
		address = in.region(bytes).base
	case ebpf.ArrayOfMaps:
		var inner *ebpf.Map
		if err = m.Lookup(key, &inner); err == nil {
			address = in.handle(inner)
		}
	default:
		bytes := make([]byte, m.ValueSize())
		if err = m.Lookup(key, bytes); err == nil {
			address = in.region(bytes).base
		}
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		in.stop(pc, "look % x up in %v: %v", key, m, err)
	}
	in.values[name] = address
	return address
}

func (in *interpreter) atomic(pc int, ins *asm.Instruction, r *[11]uint64) {
	address, size := r[ins.Dst]+uint64(int64(ins.Offset)), ins.OpCode.Size().Sizeof()
	before, operand := in.load(pc, address, size), r[ins.Src]
	switch op := ins.OpCode.AtomicOp(); op {
	case asm.AddAtomic, asm.FetchAdd:
		in.store(pc, address, size, before+operand)
		if op == asm.FetchAdd {
			r[ins.Src] = before
		}
	case asm.CmpXchg:
		if before == r[asm.R0] {
			in.store(pc, address, size, operand)
		}
		r[asm.R0] = before
	case asm.Xchg:
		in.store(pc, address, size, operand)
		r[ins.Src] = before
	default:
		in.stop(pc, "an unknown atomic operation")
	}
}

func (in *interpreter) calculate(pc int, ins *asm.Instruction, dst, src uint64) uint64 {
	wide := ins.OpCode.Class() == asm.ALU64Class
	if ins.OpCode.ALUOp() == asm.Swap {
		if ins.OpCode.Endianness() == asm.LE {
			in.stop(pc, "an unknown swap")
		}
		return bits.ReverseBytes64(dst) >> (64 - ins.Constant)
	}
	if ins.OpCode.Source() == asm.ImmSource {
		src = uint64(ins.Constant)
	}
	width := uint64(64)
	if !wide {
		dst, src, width = dst&0xffffffff, src&0xffffffff, 32
	}
	switch ins.OpCode.ALUOp() {
	case asm.Add:
		dst += src
	case asm.Sub:
		dst -= src
	case asm.Mul:
		dst *= src
	case asm.Div:
		if src == 0 {
			dst = 0
		} else {
			dst /= src
		}
	case asm.Mod:
		if src != 0 {
			dst %= src
		}
	case asm.Or:
		dst |= src
	case asm.And:
		dst &= src
	case asm.Xor:
		dst ^= src
	case asm.LSh:
		dst <<= src % width
	case asm.RSh:
		dst >>= src % width
	case asm.ArSh:
		if wide {
			dst = uint64(int64(dst) >> (src % width))
		} else {
			dst = uint64(int32(dst) >> (src % width))
		}
	case asm.Neg:
		dst = -dst
	case asm.Mov:
		dst = src
	default:
		in.stop(pc, "an unknown calculation")
	}
	if !wide {
		dst &= 0xffffffff
	}
	return dst
}

func (in *interpreter) jumps(pc int, ins *asm.Instruction, r *[11]uint64) bool {
	a, b := r[ins.Dst&0xf], uint64(ins.Constant)
	if ins.OpCode.Source() == asm.RegSource && ins.OpCode.JumpOp() != asm.Ja {
		b = r[ins.Src]
	}
	signedA, signedB := int64(a), int64(b)
	if ins.OpCode.Class() == asm.Jump32Class {
		a, b = a&0xffffffff, b&0xffffffff
		signedA, signedB = int64(int32(a)), int64(int32(b))
	}
	switch ins.OpCode.JumpOp() {
	case asm.Ja:
		return true
	case asm.JEq:
		return a == b
	case asm.JNE:
		return a != b
	case asm.JGT:
		return a > b
	case asm.JGE:
		return a >= b
	case asm.JLT:
		return a < b
	case asm.JLE:
		return a <= b
	case asm.JSet:
		return a&b != 0
	case asm.JSGT:
		return signedA > signedB
	case asm.JSGE:
		return signedA >= signedB
	case asm.JSLT:
		return signedA < signedB
	case asm.JSLE:
		return signedA <= signedB
	}
	in.stop(pc, "an unknown jump")
	return false
}

// helper is a function of the kernel's.
func (in *interpreter) helper(pc int, ins *asm.Instruction, r [11]uint64) uint64 {
	switch fn := asm.BuiltinFunc(ins.Constant); fn {
	case asm.FnMapLookupElem:
		m := in.handles[uint32(r[1])]
		return in.value(pc, m, slices.Clone(in.memory(pc, r[2], int(m.KeySize()))))
	case asm.FnKtimeGetNs, asm.FnKtimeGetCoarseNs, asm.FnJiffies64:
		return uint64(in.clock) >> clocks[fn]
	case asm.FnGetSmpProcessorId:
		return 0
	case asm.FnXdpGetBuffLen:
		return uint64(len(in.packet.bytes) - in.begin)
	case asm.FnXdpAdjustHead:
		in.begin += int(int32(r[2]))
		return 0
	case asm.FnXdpLoadBytes, asm.FnXdpStoreBytes:
		frame := in.memory(pc, in.packet.base+uint64(in.begin)+uint64(uint32(r[2])), int(uint32(r[4])))
		memory := in.memory(pc, r[3], int(uint32(r[4])))
		if fn == asm.FnXdpLoadBytes {
			copy(memory, frame)
		} else {
			copy(frame, memory)
		}
		return 0
	case asm.FnLoop:
		for i := range uint64(uint32(r[1])) {
			if in.function(int(uint32(r[2])), [5]uint64{i, r[3]}) != 0 {
				return i + 1
			}
		}
		return r[1]
	}
	in.stop(pc, "an unknown helper")
	return 0
}

// taken is how many instructions the last packet took.
func (in *interpreter) taken() (n int) {
	for _, times := range in.executed {
		n += times
	}
	return n
}

// lines is the same by the line of the source.
func (in *interpreter) lines() map[string]int {
	lines, line := map[string]int{}, ""
	for i := range in.instructions {
		if l, has := in.instructions[i].Source().(*btf.Line); has {
			line = fmt.Sprintf("%s:%d", strings.TrimLeft(l.FileName(), "./"), l.LineNumber())
		}
		if n := in.executed[i]; n > 0 {
			lines[line] += n
		}
	}
	return lines
}
