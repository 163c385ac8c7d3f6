package datapath

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// A connection that nobody remembers is taken for the oldest owner's of its slot. When it
// goes on, that was right, and the program notes when (bpf/guess.h): the service's log
// should go on naming that owner, for there may be more of them.

// guesses has that time of each service, by its index, in the clock of flow memory; 0:
// there was none.
type guesses struct {
	memory []byte
	last   []uint64
}

func mapGuesses(m *ebpf.Map) (guesses, error) {
	memory, err := mapArray(m)
	if err != nil {
		return guesses{}, fmt.Errorf("map times of guesses: %w", err)
	}
	return guesses{memory, unsafe.Slice((*uint64)(unsafe.Pointer(&memory[0])), m.MaxEntries())}, nil
}

func (g *guesses) close() error {
	if g.memory == nil {
		return nil
	}
	err := unix.Munmap(g.memory)
	g.memory, g.last = nil, nil
	if err != nil {
		return fmt.Errorf("unmap times of guesses: %w", err)
	}
	return nil
}

// forget is for a service that is about to get an index of another one.
func (g *guesses) forget(service uint32) { atomic.StoreUint64(&g.last[service], 0) }

// note is what the program does, for a time that may be past.
func (g *guesses) note(service, seen uint32) {
	if uint64(seen) > atomic.LoadUint64(&g.last[service]) {
		atomic.StoreUint64(&g.last[service], uint64(seen))
	}
}

// LastGuess returns when this director last learned that a connection of a TCP service
// lives of which no director of the group had seen a packet since its slot had several
// candidates, and that is of an older one: from its packets, or from another director. It
// is no earlier than the moment at which this process began to look, because nobody knows
// what went unseen before.
func (d *Datapath) LastGuess(id model.ServiceID) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.services[keyOfID(id)]
	if s == nil || d.guesses.last == nil {
		return d.opened
	}
	last := atomic.LoadUint64(&d.guesses.last[s.index])
	var clock unix.Timespec
	if last == 0 || unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock) != nil {
		return d.opened
	}
	// Its unit may have just begun when it was noted, or been about to end.
	now, age := time.Now(), time.Duration(clock.Nano()-int64(last+1)<<30)
	if at := now.Add(-max(0, age)); at.After(d.opened) {
		return at
	}
	return d.opened
}

// isOfOlder says whether a remembered flow is of a backend that its slot names only
// because of older generations: not the owner, nor who stands in for it.
func (d *Datapath) isOfOlder(s *service, slot directorSlot, backend uint32) bool {
	image := d.rings.bytes(s.ring)
	_, header := ringSlots(image)
	if slot.Next&slotList == 0 && header.Before == 0 || s.desired.AmongAll() {
		return false // nobody older is named, or any backend may have been chosen just now
	}
	if state := d.entries.entries[slot.Owner].State; aliveIn(state) || state == uint8(directorBackendStateBACKEND_SUSPECT) {
		return backend != slot.Owner
	}
	others := []uint32{slot.Next &^ slotSettling}
	if slot.Next&slotList != 0 {
		list := (*directorCandidates)(unsafe.Pointer(&image[int(slot.Next&^slotList)*lineSize]))
		others = list.Index[:min(int(list.Count), len(list.Index))]
	}
	for _, other := range others {
		if d.entries.alive(other) {
			return backend != other
		}
	}
	return true
}
