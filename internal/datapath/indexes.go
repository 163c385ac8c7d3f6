package datapath

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// errNoIndex says that a limit is reached, perhaps only for a moment: the entries that a Set
// takes out keep their indexes until its new entries are in place.
var errNoIndex = errors.New("no index is free: director.limits must have room for what a change takes out and what it brings, together")

// rest is how long an index stays unused after it was freed: longer than any
// program run that may still hold it (an RCU grace period, milliseconds).
const rest = 200 * time.Millisecond

// indexes hands out indexes into an array map.
type indexes struct {
	next, end uint32
	free      []uint32 // may be used again
	resting   []resting
	used      map[uint32]bool // taken before next reached them
	now       func() time.Time
}

type resting struct {
	index uint32
	since time.Time
}

// newIndexes hands out first to first+count-1.
func newIndexes(first, count uint32) *indexes {
	return &indexes{next: first, end: first + count, used: map[uint32]bool{}, now: time.Now}
}

// occupy marks indexes that an earlier process handed out.
func (x *indexes) occupy(taken []uint32) {
	for _, i := range taken {
		x.used[i] = true
	}
}

// allocate returns an index that nothing in the kernel refers to.
func (x *indexes) allocate() (uint32, error) {
	x.wake()
	if n := len(x.free); n > 0 {
		i := x.free[n-1]
		x.free = x.free[:n-1]
		return i, nil
	}
	for ; x.next < x.end; x.next++ {
		if !x.used[x.next] {
			x.next++
			return x.next - 1, nil
		}
	}
	if len(x.resting) > 0 {
		time.Sleep(rest - x.now().Sub(x.resting[0].since))
		return x.allocate()
	}
	return 0, errNoIndex
}

// release gives an index back, to be used after its rest.
func (x *indexes) release(i uint32) {
	x.resting = append(x.resting, resting{i, x.now()})
}

func (x *indexes) wake() {
	n := 0
	for n < len(x.resting) && x.now().Sub(x.resting[n].since) >= rest {
		x.free = append(x.free, x.resting[n].index)
		n++
	}
	x.resting = x.resting[n:]
}

// grace waits until all program runs that began before have ended: a packet that looked at a ring
// just before its switch must find its backend as it was.
type grace struct {
	outer, inner *ebpf.Map
}

// newGrace makes a map of maps, because the kernel waits for a grace period before
// it returns from a write to one (maybe_wait_bpf_programs in kernel/bpf/syscall.c).
func newGrace() (*grace, error) {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	g := &grace{}
	var err error
	if g.inner, err = ebpf.NewMap(inner); err != nil {
		return nil, fmt.Errorf("create a map to wait for programs with: %w", err)
	}
	if g.outer, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, MaxEntries: 1, InnerMap: inner}); err != nil {
		return nil, errors.Join(fmt.Errorf("create a map of maps to wait for programs with: %w", err), g.inner.Close())
	}
	return g, nil
}

func (g *grace) wait() error {
	if err := g.outer.Put(uint32(0), g.inner); err != nil {
		return fmt.Errorf("wait for programs that run: %w", err)
	}
	return nil
}

func (g *grace) close() error { return errors.Join(g.outer.Close(), g.inner.Close()) }
