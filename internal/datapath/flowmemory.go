package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// flowWays is FLOW_WAYS.
const flowWays = uint32(len(directorFlowBucket{}.Entries))

// flowTagAny is FLOW_TAG_ANY.
const flowTagAny = uint8(directorFlowTagFLOW_TAG_ANY)

// flowMemory is what the program remembers of flows. Here it is only read: an entry may change
// while it is read.
type flowMemory struct {
	memory  []byte
	entries []directorFlowEntry
}

func mapFlows(m *ebpf.Map) (*flowMemory, error) {
	memory, err := mapArray(m)
	if err != nil {
		return nil, fmt.Errorf("map flow memory: %w", err)
	}
	first := (*directorFlowEntry)(unsafe.Pointer(&memory[0]))
	return &flowMemory{memory, unsafe.Slice(first, int(m.MaxEntries())*int(flowWays))}, nil
}

// read returns an entry as it was at one moment; false: it is free, or is being written. A writer
// changes the entry's first word first and last.
func (f *flowMemory) read(i int) (directorFlowEntry, bool) {
	word := (*uint64)(unsafe.Pointer(&f.entries[i]))
	for {
		before := atomic.LoadUint64(word)
		entry := f.entries[i]
		if atomic.LoadUint64(word) == before {
			*(*uint64)(unsafe.Pointer(&entry)) = before
			return entry, entry.State > uint8(directorFlowStateFLOW_CLAIMED)
		}
	}
}

func (f *flowMemory) close() error {
	if f.memory == nil {
		return nil
	}
	err := unix.Munmap(f.memory)
	f.memory, f.entries = nil, nil
	if err != nil {
		return fmt.Errorf("unmap flow memory: %w", err)
	}
	return nil
}

// layFlows divides the memory among the CPUs. A process before this one has done so
// already, unless CPUs were added since: then what is remembered is not where it
// would be looked for, and is forgotten.
func (d *Datapath) layFlows() error {
	cpus, err := onlineCPUs()
	if err != nil {
		return err
	}
	buckets := d.kernel.Flows.MaxEntries() / cpus
	if buckets == 0 {
		return fmt.Errorf("director.limits.flows %d: less than one bucket of %d flows for each of %d CPUs", d.options.Limits.Flows, flowWays, cpus)
	}
	if d.kernel.kept[directorMapFlows] && !d.kernel.kept[directorMapFlowTags] {
		if err := d.tagAnything(); err != nil {
			return err
		}
	}
	layout := &d.kernel.records.director.records[0]
	if d.kernel.kept[directorMapFlows] && !d.kernel.adopted {
		d.written.FlowCpus, d.written.FlowBuckets, d.written.FlowSalt = layout.flowCPUs, layout.flowBuckets, layout.flowSalt
	}
	if d.written.FlowCpus == cpus && d.written.FlowBuckets == buckets && d.written.FlowSalt != 0 {
		return nil
	}
	d.written.FlowCpus, d.written.FlowBuckets, d.written.FlowSalt = cpus, buckets, rand.Uint64()
	if d.kernel.kept[directorMapFlows] {
		clear(d.flows.memory)
	}
	if err := d.kernel.ThisDirector.Put(uint32(0), d.written); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// tagAnything makes the program look at every place. A version without tags has filled the memory,
// and goes on filling it until this version's program replaces its own.
func (d *Datapath) tagAnything() error {
	tags, err := mapArray(d.kernel.FlowTags)
	if err != nil {
		return fmt.Errorf("map tags of flow memory: %w", err)
	}
	for i := range tags {
		tags[i] = flowTagAny
	}
	if err := unix.Munmap(tags); err != nil {
		return fmt.Errorf("unmap tags of flow memory: %w", err)
	}
	return nil
}

// noteFlowLayout lets another version find what is remembered.
func (d *Datapath) noteFlowLayout() {
	layout := &d.kernel.records.director.records[0]
	layout.flowCPUs, layout.flowBuckets, layout.flowSalt = d.written.FlowCpus, d.written.FlowBuckets, d.written.FlowSalt
}

// onlineCPUs is one more than the highest number of a CPU that runs. Many machines have room for
// many more CPUs than they have, whose memory would be idle.
func onlineCPUs() (uint32, error) {
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

// flowClock is the clock of entries: units of 2^30 ns of CLOCK_MONOTONIC.
func flowClock() (uint32, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return uint32(uint64(now.Nano()) >> 30), nil
}

// flowTimeout is how long a flow lives in a state, in the clock's units; 0: it does not.
func flowTimeout(state directorFlowState) uint32 {
	var seconds directorFlowTimeout
	switch state {
	case directorFlowStateFLOW_FREE, directorFlowStateFLOW_CLAIMED:
		return 0
	case directorFlowStateFLOW_ESTABLISHED, directorFlowStateFLOW_PROVED:
		seconds = directorFlowTimeoutFLOW_TIMEOUT_ESTABLISHED
	case directorFlowStateFLOW_BEGUN, directorFlowStateFLOW_LEARNED, directorFlowStateFLOW_TOLD:
		seconds = directorFlowTimeoutFLOW_TIMEOUT_BEGUN
	case directorFlowStateFLOW_ACTIVE:
		seconds = directorFlowTimeoutFLOW_TIMEOUT_UDP
	case directorFlowStateFLOW_CLOSING:
		seconds = directorFlowTimeoutFLOW_TIMEOUT_CLOSING
	default:
		seconds = directorFlowTimeoutFLOW_TIMEOUT_SYN
	}
	return uint32(uint64(seconds)*1e9>>30) + 1
}

// live says whether the program would still follow the entry if its backend is up.
// A backend that is down may come back to its flows.
func (e *backendEntries) live(flow *directorFlowEntry, now uint32) bool {
	if flow.State <= uint8(directorFlowStateFLOW_CLAIMED) || int(flow.Backend) >= len(e.entries) {
		return false
	}
	age := max(0, int32(now-flow.Seen))
	b := &e.entries[flow.Backend]
	return uint32(age) <= flowTimeout(directorFlowState(flow.State)) &&
		b.Epoch == flow.Epoch && b.State != uint8(directorBackendStateBACKEND_FREE)
}

// countFlows counts the remembered flows, the fresh ones among them, and by service index those
// that clients have reset.
func (d *Datapath) countFlows(now uint32) (remembered, fresh int, reset map[uint32]int) {
	reset = map[uint32]int{}
	for i := range d.flows.entries {
		if e := &d.flows.entries[i]; d.entries.live(e, now) {
			remembered++
			if meaningOf(directorFlowState(e.State)).class == model.FreshFlow {
				fresh++
			}
			if e.State == uint8(directorFlowStateFLOW_RESET) || e.State == uint8(directorFlowStateFLOW_CUT) {
				reset[e.Service]++
			}
		}
	}
	return remembered, fresh, reset
}

// flowStatus says what is remembered.
func (d *Datapath) flowStatus() (status model.FlowStatus, reset map[uint32]int, err error) {
	now, err := flowClock()
	if err != nil {
		return status, nil, err
	}
	status.Remembered, status.Fresh, reset = d.countFlows(now)
	for _, s := range d.services {
		status.Settling += s.settling
	}
	if status.Events, err = d.kernel.events(directorMapFlowEvents, d.kernel.flowEvents); err != nil {
		return status, nil, fmt.Errorf("read flow events: %w", err)
	}
	status.Told = d.told.tallies(d.kernel.told)
	return status, reset, nil
}
