package datapath

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// resetsEvery is how often the table is read for the resets of fresh flows, while directors of
// the group ask for them.
const resetsEvery = 5 * time.Second

// resets are the resets of fresh flows. Other directors are told only how many there were.
type resets struct {
	own   []model.ServiceResets
	read  time.Time
	heard map[netip.Addr]map[serviceKey]uint32 // by director
}

// heardOf is how many resets other directors say that they have seen of a service, in the order of
// the directors.
func (r *resets) heardOf(key serviceKey) (told []model.ResetsTold) {
	for director, counts := range r.heard {
		if n := counts[key]; n > 0 {
			told = append(told, model.ResetsTold{Director: director, Flows: n})
		}
	}
	slices.SortFunc(told, func(a, b model.ResetsTold) int { return a.Director.Compare(b.Director) })
	return told
}

// FreshResets returns how many fresh flows were reset in the last minute, for services that had
// any.
func (d *Datapath) FreshResets() []model.ServiceResets {
	d.mu.Lock()
	own, late := d.resets.own, time.Since(d.resets.read) >= resetsEvery
	if late {
		d.resets.read = time.Now() // calls meanwhile get the counts that were there
	}
	d.mu.Unlock()
	if !late {
		return own
	}
	counts := d.countFlowsBy(func(e *directorFlowEntry) bool { return e.State == uint8(directorFlowStateFLOW_CUT) })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resets.own = nil
	for _, s := range d.services {
		if n := counts[s.index]; n > 0 {
			d.resets.own = append(d.resets.own, model.ServiceResets{Service: s.key.id(), Flows: n})
		}
	}
	return d.resets.own
}

// HearResets takes the counts of another director of the group, in place of its counts before.
func (d *Datapath) HearResets(director netip.Addr, list []model.ServiceResets) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.resets.heard == nil {
		d.resets.heard = map[netip.Addr]map[serviceKey]uint32{}
	}
	delete(d.resets.heard, director)
	if len(list) == 0 {
		return
	}
	counts := make(map[serviceKey]uint32, len(list))
	for _, r := range list {
		counts[keyOfID(r.Service)] = r.Flows
	}
	d.resets.heard[director] = counts
}
