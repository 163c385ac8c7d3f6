package datapath

import (
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// loads is what the program knows of backends' loads, and their weights. The program counts. This
// process changes a load only where counting says nothing: for a backend that has just come, or is
// gone.
type loads struct{ bpfload.Memory[abi.Load] }

// loadWord is the first word of struct load.
type loadWord struct{ opened, period uint32 }

func (l *loads) word(index uint32) *uint64 { return (*uint64)(unsafe.Pointer(&l.Entries[index])) }

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
	if l.Entries[index].Weight != uint32(weight) {
		atomic.StoreUint32(&l.Entries[index].Weight, uint32(weight))
	}
}

// forget clears the load of an index that no backend has any more.
func (l *loads) forget(index uint32) {
	if l.Entries[index] != (abi.Load{}) {
		l.weigh(index, 0)
		atomic.StoreUint64(l.word(index), 0)
	}
}

// loadPeriod is the period that it is now, by the program's clock.
func loadPeriod() (uint32, error) {
	now, err := flows.Monotonic()
	return uint32(uint64(now) >> abi.LoadScaleLOAD_PERIOD), err
}

// weighLoads brings weights up to date, before the service's backends get these entries. A backend
// that comes, comes back or gets a larger weight has opened fewer connections for its weight than
// the others. It would get every connection that it can until it has caught up, so it begins with a
// load like theirs.
func (d *Datapath) weighLoads(s *service, entries []abi.Backend) {
	var came, others []uint32 // indexes
	weights := map[uint32]uint16{}
	for i, b := range s.order {
		weight := b.desired.Weight
		weights[b.index] = weight
		switch {
		case !aliveIn(entries[i].State) || weight == 0:
		case !d.entries.alive(b.index) || uint32(weight) > d.loads.Entries[b.index].Weight:
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
		for _, index := range came {
			d.loads.raise(index, d.loads.like(others, weights, index, period), period)
		}
	}
	for index, weight := range weights {
		d.loads.weigh(index, weight)
	}
}

// like is a load like that of other backends, for the weight of one.
func (l *loads) like(others []uint32, weights map[uint32]uint16, one, period uint32) uint32 {
	var opened, weight float64
	for _, index := range others {
		word, _ := l.read(index)
		opened += float64(word.in(period))
		weight += float64(weights[index])
	}
	return uint32(math.Round(min(opened/weight*float64(weights[one]), float64(abi.LoadScaleLOAD_MOST))))
}

// asksForLoads says whether the service's policy goes by loads, did so before, or would if they
// were known.
func (d *Datapath) asksForLoads(s *service) bool {
	weighed := func(b model.TableBackend) bool { return b.Weight != 0 }
	return s.desired.Policy.ByLoad() || slices.ContainsFunc(s.desired.Backends, weighed) || slices.ContainsFunc(s.order, func(b *backend) bool {
		return d.loads.Entries[b.index].Weight != 0
	})
}

// reported is the place for the loads that agents report. It has a lock of its own: a Set
// may take long, and a load must be current.
type reported struct {
	mu    sync.Mutex
	index map[model.Target]uint32 // of backends whose loads some policy goes by
}

// SetLoad sets the load of a backend, for policies that go by it. A load that lasts does not fade:
// it is not halved from period to period. Connections that this director places there from now on
// are added, until the next report includes them. It returns false where no policy asks for this
// load.
func (d *Datapath) SetLoad(target model.Target, units uint32, lasts bool) bool {
	d.reported.mu.Lock()
	defer d.reported.mu.Unlock()
	index, is := d.reported.index[target]
	if !is {
		return false
	}
	period, err := loadPeriod()
	if err != nil {
		d.log.Error("set a load that was reported", "error", err)
		return false
	}
	if lasts {
		period++ // the load of a period that has not begun stays as it is (load_now)
	}
	d.loads.set(index, min(units, uint32(abi.LoadScaleLOAD_MOST)), period)
	return true
}

// set makes a load what it is from now on.
func (l *loads) set(index, opened, period uint32) {
	atomic.StoreUint64(l.word(index), uint64(period)<<32|uint64(opened))
}

// publishLoads says where loads go, before the index of a backend that is gone is used again.
func (d *Datapath) publishLoads(c *change) {
	known := len(d.reported.index) > 0 && (len(c.changed) > 0 || len(d.services) != len(c.all))
	if !known && !slices.ContainsFunc(c.changed, d.asksForLoads) {
		return
	}
	index := map[model.Target]uint32{}
	for _, s := range c.all {
		if !d.asksForLoads(s) {
			continue
		}
		id := model.ServiceID{Segment: s.desired.Segment, VIP: s.desired.VIP, Protocol: s.desired.Protocol, Port: s.desired.Port}
		for _, b := range s.order {
			index[model.Target{Service: id, Backend: netip.AddrPortFrom(b.desired.Address, b.desired.Port)}] = b.index
		}
	}
	d.reported.mu.Lock()
	d.reported.index = index
	d.reported.mu.Unlock()
}

// endLoads ends the setting of loads: their memory goes.
func (d *Datapath) endLoads() {
	d.reported.mu.Lock()
	d.reported.index = nil
	d.reported.mu.Unlock()
}
