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

// A connection that no director remembers is taken to be that of its slot's oldest owner. If it
// goes on, that was right, and the program notes the time (bpf/director/pick/inferred_owner.h): the service's log should
// go on naming that owner, because there may be more such connections.

// guesses has the last such time of each service, by its index, in the clock of flow memory; 0:
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

// forget clears the time of an index that a service is about to get.
func (g *guesses) forget(service uint32) { atomic.StoreUint64(&g.last[service], 0) }

// note does what the program does, for a time that may be in the past.
func (g *guesses) note(service, seen uint32) {
	if uint64(seen) > atomic.LoadUint64(&g.last[service]) {
		atomic.StoreUint64(&g.last[service], uint64(seen))
	}
}

// LastGuess returns when this director last learned, from packets or from another director, that
// an older owner of a TCP service's slot has a living connection of which no director of the
// group had seen a packet since the slot had several candidates. The time is never before the
// moment at which this process began to look, because what happened before that is unknown.
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
	// When the time was noted, its unit may have just begun or been about to end.
	now, age := time.Now(), time.Duration(clock.Nano()-int64(last+1)<<30)
	if at := now.Add(-max(0, age)); at.After(d.opened) {
		return at
	}
	return d.opened
}

// isOfOlder says whether a remembered flow is of a backend that its slot names only because of
// older generations: neither the owner nor its backup.
func (d *Datapath) isOfOlder(s *service, slot directorSlot, backend uint32) bool {
	image := d.rings.bytes(s.ring)
	_, header := ringSlots(image)
	if slot.Next&slotList == 0 && header.Before == 0 || s.desired.AmongAll() {
		return false // no older backend is named, or any backend may have been chosen just now
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
