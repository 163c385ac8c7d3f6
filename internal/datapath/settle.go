package datapath

import (
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// A slot without a list still asks flow memory for as long as a remembered flow may be of a backend
// other than its owner: SLOT_SETTLING. A slot of a new ring has the flag if the ring before had a
// list, the flag, or another owner there. A slot of a ring in use gets the flag before its owner
// goes down or comes back. A sweep over the memory clears the flag if the owner is alive and two
// sweeps in a row have found no such flow. Two, because a flow may get a place that a sweep has
// already passed.

// sweepEvery is the time between two sweeps.
const sweepEvery = 5 * time.Second

// ringSlots are the slots of a ring in memory, and its header, which says whether its flows are
// remembered.
func ringSlots(image []byte) (slots []abi.Slot, header *abi.RingHeader) {
	header = (*abi.RingHeader)(unsafe.Pointer(&image[0]))
	room := (len(image) - abi.HeaderLines*abi.LineSize) / int(unsafe.Sizeof(abi.Slot{}))
	if header.Size == 0 || int64(header.Size) > int64(room) {
		return nil, header
	}
	return unsafe.Slice((*abi.Slot)(unsafe.Pointer(&image[abi.HeaderLines*abi.LineSize])), header.Size), header
}

// carryMemory lets a TCP service that changes to gue go on asking for remembered flows that no row
// names.
func carryMemory(fresh, before []byte) {
	const memory, full = uint8(abi.RingFlagRING_MEMORY), uint8(abi.RingFlagRING_SNAT)
	_, header := ringSlots(fresh)
	old, was := ringSlots(before)
	asks := func(s abi.Slot) bool { return s.Next&(abi.SlotList|abi.SlotSettling) != 0 }
	if was.Flags&memory != 0 && header.Flags&full == 0 && slices.ContainsFunc(old, asks) {
		header.Flags |= memory
	}
}

// carrySettling flags slots of a ring that replaces another.
func carrySettling(fresh, before []byte) {
	slots, header := ringSlots(fresh)
	old, was := ringSlots(before)
	if header.Flags&uint8(abi.RingFlagRING_MEMORY) == 0 {
		return
	}
	// The same flows have other slots: any of them may have been another backend's.
	moved := len(slots) != len(old) || affinityOf(header) != affinityOf(was) || header.Salt != was.Salt || was.Before != 0
	for i := range slots {
		if slots[i].Next&abi.SlotList != 0 {
			continue
		}
		if moved || old[i].Next&(abi.SlotList|abi.SlotSettling) != 0 || old[i].Owner != slots[i].Owner {
			slots[i].Next |= abi.SlotSettling
		}
	}
}

// flagAllSettling flags the slots of a ring that always ask: see alwaysAsks.
func flagAllSettling(image []byte) {
	slots, _ := ringSlots(image)
	for i := range slots {
		if slots[i].Next&abi.SlotList == 0 {
			slots[i].Next |= abi.SlotSettling
		}
	}
}

// flagSettling flags the slots of some owners, even in a ring that packets use.
func flagSettling(image []byte, of func(owner uint32) bool) {
	slots, header := ringSlots(image)
	if header.Flags&uint8(abi.RingFlagRING_MEMORY) == 0 {
		return
	}
	owners := toldOwners(image)
	for i := range slots {
		if slots[i].Next&(abi.SlotList|abi.SlotSettling) == 0 && of(slots[i].Owner) {
			atomic.OrUint32(&slots[i].Next, abi.SlotSettling)
			tellOwner(owners, slots, i)
		}
	}
}

// turn flags the slots whose owner is about to go down or to come back: from here on the backup's
// flows are told apart from the owner's.
func (d *Datapath) turn(s *service, turning []uint32) {
	if s.ring.lines == 0 || len(turning) == 0 {
		return
	}
	image := d.rings.bytes(s.ring)
	flagSettling(image, func(owner uint32) bool { return slices.Contains(turning, owner) })
	// Earlier sweeps say nothing about flows from now on.
	s.settling, s.clean = countSettling(image), nil
}

func countSettling(image []byte) (n int) {
	slots, _ := ringSlots(image)
	for i := range slots {
		if slots[i].Next&(abi.SlotList|abi.SlotSettling) == abi.SlotSettling {
			n++
		}
	}
	return n
}

// sweep finds the slots that still have flows of backends other than their owner.
func (d *Datapath) sweep() {
	d.sweepShared()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tryHostsAgain()
	settling := map[uint32]*service{}
	for _, s := range d.services {
		if s.settling > 0 && !alwaysAsks(s.desired) {
			settling[s.index] = s
		}
	}
	if len(settling) == 0 || d.flows.Entries == nil {
		return
	}
	now, err := flows.Clock()
	if err != nil {
		d.log.Error("sweep flow memory", "error", err)
		return
	}
	needed := map[*service][]bool{}
	for _, s := range settling {
		slots, _ := ringSlots(d.rings.bytes(s.ring))
		needed[s] = make([]bool, len(slots))
		for i := range slots {
			needed[s][i] = !d.entries.alive(slots[i].Owner)
		}
	}
	for flow := range d.flows.All() {
		s := settling[flow.Service]
		if s == nil || !flows.Live(d.entries.Entries, flow, now) {
			continue
		}
		slots, header := ringSlots(d.rings.bytes(s.ring))
		number := slotOf(s, header, flow)
		if slots[number].Owner != flow.Backend {
			needed[s][number] = true
		}
	}
	for s, slots := range needed {
		d.settled(s, slots)
	}
}

// settled clears the flag of slots for which neither this sweep nor the last one found a reason.
func (d *Datapath) settled(s *service, needed []bool) {
	image := d.rings.bytes(s.ring)
	slots, _ := ringSlots(image)
	owners := toldOwners(image)
	if len(s.clean) != len(slots) {
		s.clean = make([]bool, len(slots))
	}
	for i := range slots {
		if slots[i].Next&(abi.SlotList|abi.SlotSettling) == abi.SlotSettling && s.clean[i] && !needed[i] {
			atomic.AndUint32(&slots[i].Next, ^abi.SlotSettling)
			tellOwner(owners, slots, i)
			s.settling--
		}
		s.clean[i] = !needed[i]
	}
}

// slotOf is the slot of a remembered flow in the service's ring.
func slotOf(s *service, header *abi.RingHeader, flow *abi.FlowEntry) uint32 {
	return uint32(flowOf(s, flow).Hash(header.Salt, affinityOf(header)) >> 32 * uint64(header.Size) >> 32)
}

// affinityOf is what chooses the slots of a ring.
func affinityOf(header *abi.RingHeader) model.Affinity {
	return model.AffinityFrom(header.Affinity, header.Prefix4, header.Prefix6)
}

// flowOf is a remembered flow in the form that hashes take.
func flowOf(s *service, flow *abi.FlowEntry) model.Flow {
	return model.Flow{
		Segment: s.desired.Segment, Source: abi.AddressOf(flow.Source, s.key.vip.Is6()), Destination: s.key.vip,
		Protocol: uint8(s.key.protocol), SourcePort: abi.BigEndian16(flow.SourcePort), DestinationPort: abi.BigEndian16(flow.DestinationPort),
	}
}

// sweeper runs a function from time to time.
type sweeper struct {
	stop chan struct{}
	done chan struct{}
}

func startSweeper(sweep func()) *sweeper {
	s := &sweeper{make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(s.done)
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				sweep()
			}
		}
	}()
	return s
}

func (s *sweeper) close() {
	close(s.stop)
	<-s.done
}
