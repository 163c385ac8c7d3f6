// Package flows reads what the director's program remembers of flows: flow memory, and full NAT's
// table. Entries may change while they are read.
package flows

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Ways is FLOW_WAYS.
const Ways = uint32(len(abi.FlowBucket{}.Entries))

// TagAny is FLOW_TAG_ANY.
const TagAny = uint8(abi.FlowTagFLOW_TAG_ANY)

// Memory is what the program remembers of flows. Here it is only read: an entry may change
// while it is read.
type Memory struct{ bpfload.Memory[abi.FlowEntry] }

// Read returns an entry as it was at one moment; false: it is free, or is being written.
func (f *Memory) Read(i int) (abi.FlowEntry, bool) {
	entry := atOneMoment(&f.Entries[i])
	return entry, entry.State > uint8(abi.FlowStateFLOW_CLAIMED)
}

// atOneMoment copies what programs may write meanwhile: a writer changes the first word first and
// last.
func atOneMoment[T any](at *T) T {
	word := (*uint64)(unsafe.Pointer(at))
	for {
		before := atomic.LoadUint64(word)
		entry := *at
		if atomic.LoadUint64(word) == before {
			*(*uint64)(unsafe.Pointer(&entry)) = before
			return entry
		}
	}
}

// Meaning is what a state of flow memory means to others: see bpf/lib/proof.h.
type Meaning struct {
	Class model.FlowClass
	State model.RememberedState // 0: no flow has this state
}

// MeaningOf is the meaning of a value of enum flow_state.
func MeaningOf(state abi.FlowState) Meaning {
	switch state {
	case abi.FlowStateFLOW_SYN, abi.FlowStateFLOW_ONCE, abi.FlowStateFLOW_LEARNED:
		return Meaning{model.FreshFlow, model.FlowOpening}
	case abi.FlowStateFLOW_BEGUN, abi.FlowStateFLOW_ANSWERED, abi.FlowStateFLOW_TWICE, abi.FlowStateFLOW_TOLD, abi.FlowStateFLOW_TOLD_UDP:
		return Meaning{model.FreshFlow, model.FlowOpen}
	case abi.FlowStateFLOW_PARTED:
		return Meaning{model.FreshFlow, model.FlowClosing}
	case abi.FlowStateFLOW_CUT:
		return Meaning{model.FreshFlow, model.FlowReset}
	case abi.FlowStateFLOW_ESTABLISHED, abi.FlowStateFLOW_ACTIVE:
		return Meaning{model.SustainedFlow, model.FlowOpen}
	case abi.FlowStateFLOW_PROVED:
		return Meaning{model.ProvedFlow, model.FlowOpen}
	case abi.FlowStateFLOW_CLOSING:
		return Meaning{model.SustainedFlow, model.FlowClosing}
	case abi.FlowStateFLOW_RESET:
		return Meaning{model.SustainedFlow, model.FlowReset}
	}
	return Meaning{}
}

// StateOf is the state of a flow that another director shares; 0: there is none. What an older
// version shares counts as fresh, because it may be part of a flood.
func StateOf(f *model.RememberedFlow) abi.FlowState {
	fresh := f.Class == model.FreshFlow
	switch {
	case f.Service.Protocol != model.TCP && f.State != model.FlowOpen:
		return 0
	case f.Service.Protocol != model.TCP && fresh:
		return abi.FlowStateFLOW_TOLD_UDP
	case f.Service.Protocol != model.TCP:
		return abi.FlowStateFLOW_ACTIVE
	case f.State == model.FlowOpen && fresh:
		return abi.FlowStateFLOW_TOLD
	case f.State == model.FlowOpen && f.Class == model.ProvedFlow:
		return abi.FlowStateFLOW_PROVED
	case f.State == model.FlowOpen:
		return abi.FlowStateFLOW_ESTABLISHED
	case f.State == model.FlowClosing && fresh:
		return abi.FlowStateFLOW_PARTED
	case f.State == model.FlowClosing:
		return abi.FlowStateFLOW_CLOSING
	case f.State == model.FlowReset && fresh:
		return abi.FlowStateFLOW_CUT
	case f.State == model.FlowReset:
		return abi.FlowStateFLOW_RESET
	}
	return 0
}

// Monotonic is the kernel's clock CLOCK_MONOTONIC, which programs use.
func Monotonic() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// Clock is the clock of entries: units of 2^30 ns of Monotonic.
func Clock() (uint32, error) {
	now, err := Monotonic()
	return uint32(now >> 30), err
}

// Timeout is how long a flow lives in a state, in the clock's units; 0: it does not.
func Timeout(state abi.FlowState) uint32 {
	var seconds abi.FlowTimeout
	switch state {
	case abi.FlowStateFLOW_FREE, abi.FlowStateFLOW_CLAIMED:
		return 0
	case abi.FlowStateFLOW_ESTABLISHED, abi.FlowStateFLOW_PROVED:
		seconds = abi.FlowTimeoutFLOW_TIMEOUT_ESTABLISHED
	case abi.FlowStateFLOW_BEGUN, abi.FlowStateFLOW_LEARNED, abi.FlowStateFLOW_TOLD:
		seconds = abi.FlowTimeoutFLOW_TIMEOUT_BEGUN
	case abi.FlowStateFLOW_ACTIVE:
		seconds = abi.FlowTimeoutFLOW_TIMEOUT_UDP
	case abi.FlowStateFLOW_CLOSING:
		seconds = abi.FlowTimeoutFLOW_TIMEOUT_CLOSING
	default:
		seconds = abi.FlowTimeoutFLOW_TIMEOUT_SYN
	}
	return uint32(uint64(seconds)*1e9>>30) + 1
}

// Live says whether the program would still follow an entry if its backend is up. A backend that is
// down may come back to its flows.
func Live(backends []abi.Backend, flow *abi.FlowEntry, now uint32) bool {
	if flow.State <= uint8(abi.FlowStateFLOW_CLAIMED) || int(flow.Backend) >= len(backends) {
		return false
	}
	age := max(0, int32(now-flow.Seen))
	b := &backends[flow.Backend]
	return uint32(age) <= Timeout(abi.FlowState(flow.State)) &&
		b.Epoch == flow.Epoch && b.State != uint8(abi.BackendStateBACKEND_FREE)
}

// OnlineCPUs is one more than the highest number of a CPU that runs. Many machines have room for
// many more CPUs than they have, whose memory would be idle.
func OnlineCPUs() (uint32, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if errors.Is(err, os.ErrNotExist) {
		possible, err := ebpf.PossibleCPU()
		return uint32(possible), err
	}
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	list := strings.TrimSpace(string(text)) // such as 0-3,8
	last, err := strconv.ParseUint(list[strings.LastIndexAny(list, ",-")+1:], 10, 16)
	if err != nil {
		return 0, fmt.Errorf("count CPUs in %q: %w", list, err)
	}
	return uint32(last) + 1, nil
}

// OnOneCPU runs a function on a CPU, or, where that is not allowed, on any CPU that is.
func OnOneCPU(cpu int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read which CPUs this process may run on: %w", err)
	}
	one.Set(cpu)
	if unix.SchedSetaffinity(0, &one) != nil {
		return f()
	}
	err := f()
	if back := unix.SchedSetaffinity(0, &before); back != nil {
		err = errors.Join(err, fmt.Errorf("leave CPU %d: %w", cpu, back))
	}
	return err
}
