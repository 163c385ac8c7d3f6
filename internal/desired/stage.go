package desired

import (
	"math"
	"net/netip"
	"reflect"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// stage returns the services that are a part of the way from some to others, less than all of it.
// Backends' shares change by that part: those that come have that much of their share, and those
// that go or drain have lost it. Changes that cannot be divided come with the last part: services
// that go, those that replace one that is still there, all changes of a service whose slots would
// all move or whose packets would go another way, and names.
//
// slots says how many slots a service's newest generation has: while there are backends of both, a
// ring whose size is not configured keeps its size.
func stage(before, after []model.Service, part float64, slots func(model.ServiceID) uint32) []model.Service {
	was, is := map[model.ServiceID]*model.Service{}, map[model.ServiceID]bool{}
	for i := range before {
		was[before[i].ID()] = &before[i]
	}
	var list []model.Service
	for i := range after {
		next := &after[i]
		is[next.ID()] = true
		switch old := was[next.ID()]; {
		case old != nil:
			list = append(list, stageOf(old, next, part, slots(next.ID())))
		case !conflicts(before, next):
			list = append(list, *next)
		}
	}
	for i := range before {
		if !is[before[i].ID()] {
			list = append(list, before[i])
		}
	}
	return list
}

// conflicts reports whether one of the services may have the name, or the VIP and protocol, that a new
// one wants.
func conflicts(services []model.Service, next *model.Service) bool {
	for i := range services {
		s := &services[i]
		if s.Name == next.Name || s.VIP == next.VIP && s.Protocol == next.Protocol && s.Segment == next.Segment {
			return true
		}
	}
	return false
}

// stageOf is a service on its way.
func stageOf(before, after *model.Service, part float64, slots uint32) model.Service {
	merged, can := mergeBackends(before, after, part)
	if !can || !divisible(before, after, slots) {
		return *before
	}
	s := *after
	s.Name, s.Backends = before.Name, merged
	if s.RingSize == 0 {
		s.RingSize = slots
	}
	return s
}

// divisible reports whether the differences besides the backends move no slot, and change no
// packet's way.
func divisible(before, after *model.Service, slots uint32) bool {
	sizes := before.RingSize == after.RingSize || after.RingSize == 0 && before.RingSize == slots
	return sizes && before.Mode == after.Mode && reflect.DeepEqual(before.Fallback, after.Fallback) &&
		reflect.DeepEqual(before.RedirectTo, after.RedirectTo) && before.RedirectUnprobed == after.RedirectUnprobed && before.SNAT == after.SNAT && before.AskRedirect == after.AskRedirect && before.Policy == after.Policy &&
		before.PlacedBy() == after.PlacedBy() && reflect.DeepEqual(before.QUIC, after.QUIC) &&
		slices.Equal(before.SourceRanges, after.SourceRanges) && before.KernelSources == after.KernelSources
}

// mergeBackends returns the backends of both, with shares in between; false: they cannot be mixed,
// or have no shares.
func mergeBackends(before, after *model.Service, part float64) ([]model.Backend, bool) {
	place, list := map[netip.AddrPort]int{}, []model.Backend{}
	was, is := sharesOf(before), sharesOf(after)
	if len(was) == 0 || len(is) == 0 {
		return nil, false
	}
	olds := map[netip.AddrPort]*model.Backend{}
	for i := range before.Backends {
		olds[before.Backends[i].Endpoint()] = &before.Backends[i]
	}
	for _, b := range after.Backends {
		key := b.Endpoint()
		if old := olds[key]; old != nil {
			if old.ModeIn(*before) != b.ModeIn(*after) || old.ServerID != b.ServerID || old.MAC != b.MAC || old.VLAN != b.VLAN || old.Host != b.Host {
				return nil, false
			}
			b.Name = old.Name
			if old.State == model.Down || b.State == model.Down {
				b.State = old.State // it is all or nothing
			}
		}
		place[key], list = len(list), append(list, b)
	}
	for _, b := range before.Backends {
		if _, stays := place[b.Endpoint()]; !stays {
			place[b.Endpoint()], list = len(list), append(list, b)
		}
	}
	shares, most := make([]float64, len(list)), 0.0
	for i := range list {
		key := list[i].Endpoint()
		shares[i] = (1-part)*was[key] + part*is[key]
		most = max(most, shares[i])
	}
	for i := range list {
		b := &list[i]
		if shares[i] == 0 {
			continue // it gets no connections on the way either
		}
		b.Weight = uint16(max(1, math.Round(shares[i]/most*math.MaxUint16)))
		if b.State == model.Draining {
			b.State = model.Active // until the last part
		}
	}
	return list, together(list, len(before.QUIC) > 0)
}

// sharesOf returns the share of a service's slots that each backend has.
func sharesOf(s *model.Service) map[netip.AddrPort]float64 {
	shares, sum := map[netip.AddrPort]float64{}, 0.0
	for i := range s.Backends {
		if b := &s.Backends[i]; b.State != model.Draining && b.Weight > 0 {
			shares[b.Endpoint()] = float64(b.Weight)
			sum += float64(b.Weight)
		}
	}
	for key := range shares {
		shares[key] /= sum
	}
	return shares
}

// together renames a backend that comes if one that goes has its name, and reports whether all
// backends have different names and server IDs then.
func together(list []model.Backend, quic bool) bool {
	count := map[string]int{}
	for i := range list {
		count[list[i].Name]++
	}
	ids, names := map[model.ServerIDs]bool{}, map[string]bool{}
	for i := range list {
		b := &list[i]
		if count[b.Name] > 1 {
			count[b.Name]--
			b.Name = b.Endpoint().String()
		}
		if names[b.Name] || quic && ids[b.ServerID] {
			return false
		}
		names[b.Name], ids[b.ServerID] = true, true
	}
	return true
}

// slotsIn returns a function that says how many slots the newest generation of a service of the set
// has; 0: there is none.
func slotsIn(set store.Set) func(model.ServiceID) uint32 {
	slots := make(map[model.ServiceID]uint32, len(set.Documents))
	for i := range set.Documents {
		if d := &set.Documents[i]; len(d.Log.Generations) > 0 {
			slots[d.Service.ID()] = d.Log.Generations[0].Slots
		}
	}
	return func(id model.ServiceID) uint32 { return slots[id] }
}
