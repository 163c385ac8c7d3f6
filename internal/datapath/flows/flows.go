// Package flows reads what the director's program remembers of flows: flow memory, and full NAT's
// table. Entries may change while they are read.
package flows

import (
	"errors"
	"fmt"
	"iter"
	"os"
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

// Ways is FLOW_WAYS: how many places a bucket of flow memory has.
const Ways = uint32(len(abi.FlowBucket{}.Places))

// FormerWays is FORMER_WAYS: the same of the table of versions before 0.2.
const FormerWays = uint32(len(abi.FormerBucket{}.Entries))

// Memory is what the program remembers of flows. Here it is only read: a place may change while it
// is read.
type Memory struct{ bpfload.Memory[abi.FlowPlace] }

// Flows hands out the flows of some places, each as it was at one moment, live or not. What it hands
// out is valid until the next one.
func (m *Memory) Flows(from, to int) iter.Seq[*abi.FlowEntry] {
	return func(yield func(*abi.FlowEntry) bool) {
		var entry abi.FlowEntry
		for i := from; i < min(to, len(m.Entries)); i++ {
			// Most places are free, which a look at the state tells soonest. If it is old, read decides.
			if begins(m.Entries[i].State) && m.read(i, &entry) && !yield(&entry) {
				return
			}
		}
	}
}

// All hands out the flows of all places.
func (m *Memory) All() iter.Seq[*abi.FlowEntry] { return m.Flows(0, len(m.Entries)) }

// read reads a place; false: no flow begins there, or it is being written.
func (m *Memory) read(i int, entry *abi.FlowEntry) bool {
	return ReadPlace(m.Entries[i&^1:][:2], i&1, entry)
}

// begins says whether a flow begins in a place with this state.
func begins(state uint8) bool {
	return state > uint8(abi.FlowStateFLOW_CLAIMED) && state != uint8(abi.FlowStateFLOW_REST)
}

// ReadPlace reads the flow that begins in one of the two places of a line; false: none does, or it
// is being written.
func ReadPlace(line []abi.FlowPlace, i int, entry *abi.FlowEntry) bool {
	word, rest := (*uint64)(unsafe.Pointer(&line[i])), (*uint64)(unsafe.Pointer(&line[1]))
	for {
		before := atomic.LoadUint64(word)
		if !begins(uint8(before >> 32)) { // of a little-endian machine, as the programs are
			return false
		}
		wide := i == 0 && uint8(atomic.LoadUint64(rest)>>32) == uint8(abi.FlowStateFLOW_REST)
		place, other := line[i], line[1]
		if atomic.LoadUint64(word) != before {
			continue // a writer changes it first and last
		}
		*entry = abi.FlowEntry{
			Seen: place.Seen, State: place.State, Epoch: place.Epoch, Turn: place.Turn, Since: place.Since,
			Backend: place.Backend, Service: place.Service, Next: place.Next,
			SourcePort: place.SourcePort, DestinationPort: place.DestinationPort,
		}
		*(*uint64)(unsafe.Pointer(entry)) = before
		words := (*[4]uint32)(unsafe.Pointer(&entry.Source))
		words[0] = place.Source
		if wide {
			*(*[2]uint32)(words[:2]) = *(*[2]uint32)(unsafe.Pointer(&other.Source))
			words[2], words[3] = place.More, place.Source
		}
		return true
	}
}

// AtOneMoment copies what programs may write meanwhile: a writer changes the first word first and
// last.
func AtOneMoment[T any](at *T) T {
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
	late := uint32(0)
	switch state {
	case abi.FlowStateFLOW_FREE, abi.FlowStateFLOW_CLAIMED, abi.FlowStateFLOW_REST:
		return 0
	case abi.FlowStateFLOW_ESTABLISHED, abi.FlowStateFLOW_PROVED:
		seconds, late = abi.FlowTimeoutFLOW_TIMEOUT_ESTABLISHED, uint32(abi.FlowTimeoutFLOW_SEEN_LATE)
	case abi.FlowStateFLOW_BEGUN, abi.FlowStateFLOW_LEARNED, abi.FlowStateFLOW_TOLD:
		seconds = abi.FlowTimeoutFLOW_TIMEOUT_BEGUN
	case abi.FlowStateFLOW_ACTIVE:
		seconds, late = abi.FlowTimeoutFLOW_TIMEOUT_UDP, uint32(abi.FlowTimeoutFLOW_SEEN_LATE)
	case abi.FlowStateFLOW_CLOSING:
		seconds = abi.FlowTimeoutFLOW_TIMEOUT_CLOSING
	default:
		seconds = abi.FlowTimeoutFLOW_TIMEOUT_SYN
	}
	return uint32(uint64(seconds)*1e9>>30) + 1 + late
}

// Live says whether the program would still follow an entry if its backend is up. A backend that is
// down may come back to its flows.
func Live(backends []abi.Backend, flow *abi.FlowEntry, now uint32) bool {
	if Timeout(abi.FlowState(flow.State)) == 0 || int(flow.Backend) >= len(backends) {
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
