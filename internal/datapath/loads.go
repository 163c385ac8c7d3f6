package datapath

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// loads is what the program knows of backends' loads, and their weights. The program counts. This
// process changes a load only where counting says nothing: for a backend that has just come, or is
// gone.
type loads struct {
	memory  []byte
	entries []directorLoad
}

func mapLoads(m *ebpf.Map) (*loads, error) {
	memory, err := mapArray(m)
	if err != nil {
		return nil, fmt.Errorf("map loads into memory: %w", err)
	}
	return &loads{memory, unsafe.Slice((*directorLoad)(unsafe.Pointer(&memory[0])), m.MaxEntries())}, nil
}

func (l *loads) close() error {
	if l.memory == nil {
		return nil
	}
	err := unix.Munmap(l.memory)
	l.memory, l.entries = nil, nil
	if err != nil {
		return fmt.Errorf("unmap loads: %w", err)
	}
	return nil
}

// loadWord is the first word of struct load.
type loadWord struct{ opened, period uint32 }

func (l *loads) word(index uint32) *uint64 { return (*uint64)(unsafe.Pointer(&l.entries[index])) }

func (l *loads) read(index uint32) (loadWord, uint64) {
	word := atomic.LoadUint64(l.word(index))
	return loadWord{uint32(word), uint32(word >> 32)}, word
}

// in is the load in a period, as the program computes it.
func (w loadWord) in(period uint32) uint32 {
	passed := int32(period - w.period)
	switch {
	case passed <= 0:
		return w.opened
	case passed >= 32:
		return 0
	}
	return w.opened >> passed
}

// raise makes a load at least this large.
func (l *loads) raise(index, opened, period uint32) {
	for {
		now, word := l.read(index)
		if now.in(period) >= opened {
			return
		}
		if atomic.CompareAndSwapUint64(l.word(index), word, uint64(period)<<32|uint64(opened)) {
			return
		}
	}
}

// weigh sets the divisor of a load. It does not write to pages of services whose policy asks for no
// loads.
func (l *loads) weigh(index uint32, weight uint16) {
	if l.entries[index].Weight != uint32(weight) {
		atomic.StoreUint32(&l.entries[index].Weight, uint32(weight))
	}
}

// forget clears the load of an index that no backend has any more.
func (l *loads) forget(index uint32) {
	if l.entries[index] != (directorLoad{}) {
		l.weigh(index, 0)
		atomic.StoreUint64(l.word(index), 0)
	}
}

// loadPeriod is the period that it is now, by the program's clock.
func loadPeriod() (uint32, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return uint32(uint64(now.Nano()) >> directorLoadScaleLOAD_PERIOD), nil
}

// weighLoads brings weights up to date, before the service's backends get these entries. A backend
// that comes, comes back or gets a larger weight has opened fewer connections for its weight than
// the others. It would get every connection that it can until it has caught up, so it begins with a
// load like theirs.
func (d *Datapath) weighLoads(s *service, entries []directorBackend) {
	var came, others []uint32 // indexes
	weights := map[uint32]uint16{}
	for i, b := range s.order {
		weight := b.desired.Weight
		weights[b.index] = weight
		switch {
		case !aliveIn(entries[i].State) || weight == 0:
		case !d.entries.alive(b.index) || uint32(weight) > d.loads.entries[b.index].Weight:
			came = append(came, b.index)
		default:
			others = append(others, b.index)
		}
	}
	if len(came) > 0 && len(others) > 0 {
		period, err := loadPeriod()
		if err != nil {
			d.log.Error("set loads of backends that came", "service", s.desired.Name, "error", err)
			return // without weights no director goes by loads
		}
		perWeight := d.loads.perWeight(others, weights, period)
		for _, index := range came {
			opened := min(perWeight*float64(weights[index]), float64(directorLoadScaleLOAD_MOST))
			d.loads.raise(index, uint32(math.Round(opened)), period)
		}
	}
	for index, weight := range weights {
		d.loads.weigh(index, weight)
	}
}

// perWeight is the mean load of some backends per unit of weight.
func (l *loads) perWeight(of []uint32, weights map[uint32]uint16, period uint32) float64 {
	var opened, weight float64
	for _, index := range of {
		word, _ := l.read(index)
		opened += float64(word.in(period))
		weight += float64(weights[index])
	}
	return opened / weight
}

// asksForLoads says whether the service's policy goes by loads, did so before, or would if they
// were known.
func (d *Datapath) asksForLoads(s *service) bool {
	weighed := func(b model.TableBackend) bool { return b.Weight != 0 }
	return s.desired.Policy.ByLoad() || slices.ContainsFunc(s.desired.Backends, weighed) || slices.ContainsFunc(s.order, func(b *backend) bool {
		return d.loads.entries[b.index].Weight != 0
	})
}
