package engine

import (
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// Shift is a service before and after a change; nil: it does not exist.
type Shift struct {
	ID            model.ServiceID
	Before, After *model.TableService
	Was, Is       ServiceReport
}

// Shifts plans services before and after a change: first those that exist before it in their order,
// then the new ones. It forwards nothing.
func Shifts(before, after Services) []Shift {
	p := NewPlanner() // the same for both: most rings are in both
	var shifts []Shift
	at := map[model.ServiceID]int{}
	table, report := p.Plan(model.Config{Services: before.List}, before.Logs, nil)
	for i := range table.Services {
		id := table.Services[i].ID()
		at[id] = len(shifts)
		shifts = append(shifts, Shift{ID: id, Before: &table.Services[i], Was: report.Services[i]})
	}
	table, report = p.Plan(model.Config{Services: after.List}, after.Logs, nil)
	for i := range table.Services {
		id := table.Services[i].ID()
		n, had := at[id]
		if !had {
			n, shifts = len(shifts), append(shifts, Shift{ID: id})
		}
		shifts[n].After, shifts[n].Is = &table.Services[i], report.Services[i]
	}
	return shifts
}

// Moved returns how many slots have another owner than before, as [Moves] does.
func (s *Shift) Moved() int {
	if s.Before == nil || s.After == nil {
		return 0
	}
	return slotsMoved(s.Before, s.After)
}

// Way is the backend to which new connections went, and the one to which they go.
type Way struct{ From, To netip.AddrPort }

// Ways returns the share of all new connections for each pair of a backend before the change and
// one after it, if these backends are down. A backend is invalid if there is none: the service
// comes, goes, or has no members.
func (s *Shift) Ways(down func(netip.AddrPort) bool) map[Way]float64 {
	was, is := live(inUse(s.Before, down), down), live(inUse(s.After, down), down)
	ways := map[Way]float64{}
	if s.Before != nil && s.After != nil && s.Before.Affinity != s.After.Affinity {
		for from, a := range sharesOf(was) {
			for to, b := range sharesOf(is) {
				ways[Way{from, to}] += a * b
			}
		}
		return ways
	}
	n, m := uint64(len(was)), uint64(len(is))
	// All hashes are n*m parts: a slot of one ring has m of them, a slot of the other n.
	var at uint64
	for i, j := uint64(0), uint64(0); i < n && j < m; {
		end := min((i+1)*m, (j+1)*n)
		ways[Way{was[i], is[j]}] += float64(end - at)
		at = end
		if (i+1)*m == end {
			i++
		}
		if (j+1)*n == end {
			j++
		}
	}
	for way := range ways {
		ways[way] /= float64(n * m)
	}
	return ways
}

func sharesOf(owners []netip.AddrPort) map[netip.AddrPort]float64 {
	shares := map[netip.AddrPort]float64{}
	for _, owner := range owners {
		shares[owner] += 1 / float64(len(owners))
	}
	return shares
}

// inUse returns the service as it is with the tier that gets new connections, if these backends are down.
func inUse(s *model.TableService, down func(netip.AddrPort) bool) *model.TableService {
	if s == nil || len(s.Tiers) < 2 || s.TierHealth == nil {
		return s
	}
	of := model.ServiceTiers{Needs: s.TierHealth.Needs, Tiers: slices.Clone(s.TierHealth.Tiers)}
	for tier := range of.Tiers {
		counted := map[uint32]bool{model.NoBackend: true}
		for _, slot := range s.Tiers[tier].Ring.Slots {
			if owner := slot.Owner; !counted[owner] {
				counted[owner] = true
				if b := &s.Backends[owner]; b.State == model.Active && down(b.Endpoint()) {
					of.Tiers[tier].Healthy = max(0, of.Tiers[tier].Healthy-1)
				}
			}
		}
	}
	of.Choose()
	use := *s
	if len(use.Tiers[of.Active].Ring.Slots) > 0 {
		use.Use(of.Active)
	}
	return &use
}

// live returns the backend that gets a new connection in each slot; a service that does not exist,
// or has no slots, has one slot without a backend.
func live(s *model.TableService, down func(netip.AddrPort) bool) []netip.AddrPort {
	if s == nil || len(s.Ring.Slots) == 0 {
		return []netip.AddrPort{{}}
	}
	up := make([]bool, len(s.Backends))
	for i := range s.Backends {
		up[i] = s.Backends[i].State != model.Down && !down(s.Backends[i].Endpoint())
	}
	owners := make([]netip.AddrPort, len(s.Ring.Slots))
	for i, slot := range s.Ring.Slots {
		owner := s.Ring.Receiver(slot, func(b uint32) bool { return up[b] })
		if owner == model.NoBackend {
			owner = slot.Owner // it stays if all are down: probes are not believed, or no backend gets it
		}
		if owner != model.NoBackend {
			owners[i] = s.Backends[owner].Endpoint()
		}
	}
	return owners
}

// Owned returns how many slots each backend of a service owns.
func Owned(s *model.TableService) map[netip.AddrPort]int {
	owned := map[netip.AddrPort]int{}
	if s != nil {
		for _, owner := range ownersOf(s) {
			owned[owner]++
		}
	}
	return owned
}

// OwnerAt returns a function that says which backend owns the slot of a hash, by its upper half;
// invalid: none.
func OwnerAt(s *model.TableService) func(hash uint32) netip.AddrPort {
	if s == nil || len(s.Ring.Slots) == 0 {
		return func(uint32) netip.AddrPort { return netip.AddrPort{} }
	}
	owners := ownersOf(s)
	return func(hash uint32) netip.AddrPort { return owners[uint64(hash)*uint64(len(owners))>>32] }
}
