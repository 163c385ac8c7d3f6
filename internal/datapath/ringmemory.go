package datapath

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
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
// begins. A ring is written where no packet looks and switched in by a store, and by one in the
// front ([fronts.switched]): neither takes a system call.
type ringMemory struct {
	lines  bpfload.Memory[byte]   // of map ring_lines
	begins bpfload.Memory[uint64] // of map rings: first lines, by the index of the service
	free   []run                  // in order; adjacent ones are merged
	tired  []tiredRun
	now    func() time.Time
}

// tiredRun was freed a moment ago: a packet may still be in it.
type tiredRun struct {
	run
	since time.Time
}

func mapRings(lines, begins *ebpf.Map) (*ringMemory, error) {
	m := &ringMemory{free: []run{{1, lines.MaxEntries() - 1}}, now: time.Now} // line 0 is no ring's
	var err, err2 error
	m.lines, err = bpfload.Map[byte](lines)
	m.begins, err2 = bpfload.Map[uint64](begins)
	return m, errors.Join(err, err2)
}

func (m *ringMemory) close() error { return errors.Join(m.lines.Close(), m.begins.Close()) }

// bytes are the bytes of the lines.
func (m *ringMemory) bytes(r run) []byte {
	return m.lines.Bytes[uint64(r.first)*abi.LineSize : uint64(r.end())*abi.LineSize]
}

// of returns a service's ring. What an earlier process left may be damaged: a ring that is not
// inside the memory counts as none, and is written anew.
func (m *ringMemory) of(service uint32) run {
	first, lines := m.begins.Entries[service], uint64(len(m.lines.Bytes)/abi.LineSize)
	if first == 0 || first >= lines {
		return run{}
	}
	header := (*abi.RingHeader)(unsafe.Pointer(&m.lines.Bytes[first*abi.LineSize]))
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

// allocate returns lines that no packet reads.
func (m *ringMemory) allocate(lines uint32) (run, error) {
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
	atomic.StoreUint64(&m.begins.Entries[service], uint64(next.first))
	m.release(old)
}

// release lets go of lines.
func (m *ringMemory) release(r run) {
	if r.lines > 0 {
		m.tired = append(m.tired, tiredRun{r, m.now()})
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
