package datapath

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"weir.io/weir/internal/model"
)

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
	d.loads.set(index, min(units, uint32(directorLoadScaleLOAD_MOST)), period)
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
