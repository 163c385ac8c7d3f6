package main

import (
	"net/netip"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// ring says which backends own a service's slots, and what has moved with the last change, for as
// long as the service's log has the generation before it.
func (d *director) ring(name string) (api.Ring, bool) {
	s, there := d.kernel.Service(name)
	if !there {
		return api.Ring{}, false
	}
	id := model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}
	log, _ := d.keeper.Log(id)
	var before []netip.AddrPort
	// Coming generations place nothing yet; the ring is that of the next older one.
	if place := log.Coming + 1; place < len(log.Generations) {
		before = d.placements.Owners(&log.Generations[place])
	}
	return ringOf(&s, before), true
}

// ringOf compares a ring with the owners that its slots had before.
func ringOf(s *model.TableService, before []netip.AddrPort) api.Ring {
	r := api.Ring{Service: s.Name, Owners: make([]int, len(s.Ring.Slots)), Compared: len(before) > 0 && len(before) == len(s.Ring.Slots)}
	places := map[netip.AddrPort]int{{}: -1}
	for i := range s.Backends {
		places[netip.AddrPortFrom(s.Backends[i].Address, s.Backends[i].Port)] = i
		r.Backends = append(r.Backends, s.Backends[i].Name)
	}
	for slot := range s.Ring.Slots {
		owner := -1
		if of := s.Ring.Slots[slot].Owner; of != model.NoBackend {
			owner = int(of)
		}
		r.Owners[slot] = owner
		if !r.Compared {
			continue
		}
		from, known := places[before[slot]]
		if !known {
			from = len(r.Backends)
			places[before[slot]] = from
			r.Backends = append(r.Backends, before[slot].String())
		}
		if from != owner {
			r.Moved = append(r.Moved, api.RingMove{Slot: slot, From: from})
		}
	}
	return r
}
