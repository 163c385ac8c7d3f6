package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ringMemoryError says that rings are larger than their memory. It implements engine.NoRoom:
// rows with fewer candidates take less.
type ringMemoryError string

// Error says how much is too much.
func (e ringMemoryError) Error() string { return string(e) }

// NoRoom says what kind of error this is.
func (ringMemoryError) NoRoom() {}

// errNoLines says that the rings are too large, perhaps only for a moment: the rings that a Set
// replaces keep their lines until the new ones are in place.
const errNoLines = ringMemoryError("no room for a ring: director.limits.ring-memory must have room for the rings that a change replaces and those that it brings, together")

// run is a ring's place: consecutive lines. No lines: no ring.
type run struct{ first, lines uint32 }

func (r run) end() uint32 { return r.first + r.lines }

// ringMemory is the memory of all rings, and the line at which each service's ring
// begins. A ring is written where no packet looks and switched in by one store:
// neither takes a system call.
type ringMemory struct {
	memory []byte   // of map ring_lines
	begins []byte   // of map rings
	first  []uint64 // begins, by the index of the service
	free   []run    // in order; adjacent ones are merged
	tired  []tiredRun
	now    func() time.Time
}

// tiredRun was freed a moment ago: a packet may still be in it.
type tiredRun struct {
	run
	since time.Time
}

func mapRings(lines, begins *ebpf.Map) (*ringMemory, error) {
	memory, err := mapArray(lines)
	if err != nil {
		return nil, fmt.Errorf("map rings into memory: %w", err)
	}
	first, err := mapArray(begins)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map rings into memory: %w", err), unix.Munmap(memory))
	}
	return &ringMemory{
		memory: memory,
		begins: first,
		first:  unsafe.Slice((*uint64)(unsafe.Pointer(&first[0])), begins.MaxEntries()),
		free:   []run{{1, lines.MaxEntries() - 1}}, // line 0 is no ring's
		now:    time.Now,
	}, nil
}

func mapArray(m *ebpf.Map) ([]byte, error) {
	return unix.Mmap(m.FD(), 0, int(m.MaxEntries())*int(m.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func (m *ringMemory) close() error {
	if m.memory == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(m.memory), unix.Munmap(m.begins))
	m.memory, m.begins, m.first = nil, nil, nil
	if err != nil {
		return fmt.Errorf("unmap rings: %w", err)
	}
	return nil
}

// bytes are the bytes of the lines.
func (m *ringMemory) bytes(r run) []byte {
	return m.memory[uint64(r.first)*lineSize : uint64(r.end())*lineSize]
}

// of returns a service's ring. What an earlier process left may be damaged: a ring that is not
// inside the memory counts as none, and is written anew.
func (m *ringMemory) of(service uint32) run {
	first, lines := m.first[service], uint64(len(m.memory)/lineSize)
	if first == 0 || first >= lines {
		return run{}
	}
	header := (*directorRingHeader)(unsafe.Pointer(&m.memory[first*lineSize]))
	if uint64(header.Lines) > lines-first {
		return run{}
	}
	return run{uint32(first), header.Lines}
}

// occupy takes the lines of services that an earlier process left.
func (m *ringMemory) occupy(services []uint32) {
	for _, service := range services {
		r := m.of(service)
		at := slices.IndexFunc(m.free, func(f run) bool { return f.first <= r.first && r.end() <= f.end() })
		if r.lines == 0 || at < 0 {
			continue
		}
		f := m.free[at]
		rest := slices.DeleteFunc([]run{{f.first, r.first - f.first}, {r.end(), f.end() - r.end()}},
			func(part run) bool { return part.lines == 0 })
		m.free = slices.Replace(m.free, at, at+1, rest...)
	}
}

// take returns lines that no packet reads.
func (m *ringMemory) take(lines uint32) (run, error) {
	for {
		m.wake()
		for i, f := range m.free {
			if f.lines < lines {
				continue
			}
			m.free[i] = run{f.first + lines, f.lines - lines}
			if f.lines == lines {
				m.free = slices.Delete(m.free, i, i+1)
			}
			return run{f.first, lines}, nil
		}
		if len(m.tired) == 0 {
			return run{}, errNoLines
		}
		time.Sleep(rest - m.now().Sub(m.tired[0].since))
	}
}

// switchTo makes a service use a ring, and lets go of the one that it had.
func (m *ringMemory) switchTo(service uint32, old, next run) {
	atomic.StoreUint64(&m.first[service], uint64(next.first))
	if old.lines > 0 {
		m.tired = append(m.tired, tiredRun{old, m.now()})
	}
}

// wake frees the lines that have rested, and merges them with free ones beside them.
func (m *ringMemory) wake() {
	n := 0
	for n < len(m.tired) && m.now().Sub(m.tired[n].since) >= rest {
		m.putBack(m.tired[n].run)
		n++
	}
	m.tired = m.tired[n:]
}

func (m *ringMemory) putBack(r run) {
	at, _ := slices.BinarySearchFunc(m.free, r, func(a, b run) int { return cmp.Compare(a.first, b.first) })
	if at < len(m.free) && r.end() == m.free[at].first {
		r.lines += m.free[at].lines
		m.free = slices.Delete(m.free, at, at+1)
	}
	if at > 0 && m.free[at-1].end() == r.first {
		m.free[at-1].lines += r.lines
		return
	}
	m.free = slices.Insert(m.free, at, r)
}
