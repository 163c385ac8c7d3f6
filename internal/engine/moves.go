package engine

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// Services are services with their logs.
type Services struct {
	List []model.Service
	Logs Logs
}

// Add adds a service with its log.
func (s *Services) Add(service model.Service, log model.Log) {
	s.List = append(s.List, service)
	s.Logs[service.ID()] = log
}

func (s Services) plan(p *Planner) (map[model.ServiceID]*model.TableService, Report) {
	table, report := p.Plan(model.Config{Services: s.List}, s.Logs, nil)
	return byID(table.Services), report
}

// Moves says what a change does to the slots of each service that exists before and after it, in
// the order after it. It forwards nothing.
func Moves(before, after Services) []model.Move {
	p := NewPlanner() // the same for both: most rings are in both
	was, _ := before.plan(p)
	is, report := after.plan(p)
	var moves []model.Move
	for _, s := range report.Services {
		if old := was[s.ID]; old != nil {
			moves = append(moves, model.Move{Service: s.Name, Slots: s.Slots, Moved: slotsMoved(old, is[s.ID]), Held: s.Held})
		}
	}
	return moves
}

func byID(services []model.TableService) map[model.ServiceID]*model.TableService {
	all := make(map[model.ServiceID]*model.TableService, len(services))
	for i := range services {
		s := &services[i]
		all[s.ID()] = s
	}
	return all
}

// slotsMoved returns how many slots of a service have another owner than before: the backend of new
// connections while all backends are up. If the ring's size changes, slots count by the share of
// new slots that moves. With another affinity every flow is in another slot, which may have the
// same owner: then the expected share of flows with another owner counts.
func slotsMoved(before, after *model.TableService) int {
	if before.Tier != after.Tier { // what the ring of this tier was before
		was := *before
		if was.Use(after.Tier); len(was.Tiers) <= int(after.Tier) {
			return 0 // health has chosen another tier
		}
		before = &was
	}
	n, m := uint64(len(after.Ring.Slots)), uint64(len(before.Ring.Slots))
	if n == 0 || m == 0 {
		return int(n)
	}
	if sameRing(before, after) {
		return 0
	}
	was, is := ownersOf(before), ownersOf(after)
	if before.Affinity != after.Affinity {
		return int(math.Round(float64(n) * (1 - chanceOfSame(was, is))))
	}
	// All hashes are n*m parts: a new slot has m of them, an old one n.
	var parts, at uint64
	for i, j := uint64(0), uint64(0); i < n && j < m; {
		end := min((i+1)*m, (j+1)*n)
		if was[j] != is[i] {
			parts += end - at
		}
		at = end
		if (i+1)*m == end {
			i++
		}
		if (j+1)*n == end {
			j++
		}
	}
	return int((parts + m/2) / m)
}

// sameRing is quick where a plan has taken a ring from the one before.
func sameRing(a, b *model.TableService) bool {
	return &a.Ring.Slots[0] == &b.Ring.Slots[0] && a.Affinity == b.Affinity &&
		slices.EqualFunc(a.Backends, b.Backends, func(x, y model.TableBackend) bool { return x.Endpoint() == y.Endpoint() })
}

// ownersOf returns the owner of each slot, independent of its position among the backends.
func ownersOf(s *model.TableService) []netip.AddrPort {
	owners := make([]netip.AddrPort, len(s.Ring.Slots))
	for i, slot := range s.Ring.Slots {
		if slot.Owner != model.NoBackend {
			owners[i] = s.Backends[slot.Owner].Endpoint()
		}
	}
	return owners
}

// chanceOfSame is the chance that two unrelated slots have the same owner.
func chanceOfSame(was, is []netip.AddrPort) (chance float64) {
	count := map[netip.AddrPort]int{}
	for _, owner := range was {
		count[owner]++
	}
	for _, owner := range is {
		chance += float64(count[owner]) / float64(len(was)) / float64(len(is))
	}
	return chance
}

// tally is how many slots of a service have moved while the engine runs.
type tally struct {
	last  int // with the last change that moved any
	total uint64
}

// movesTo says which services' slots move with a table.
func (e *Engine) movesTo(now map[model.ServiceID]*model.TableService, report *Report) map[model.ServiceID]model.Move {
	moves := map[model.ServiceID]model.Move{}
	for _, s := range report.Services {
		if old := e.placing[s.ID]; old != nil {
			if n := slotsMoved(old, now[s.ID]); n > 0 {
				moves[s.ID] = model.Move{Service: s.Name, Slots: s.Slots, Moved: n, Held: s.Held}
			}
		}
	}
	return moves
}

// noteMoves notes and logs that the sinks have taken a table.
func (e *Engine) noteMoves(table *model.Table, report *Report) {
	now := byID(table.Services)
	moves := e.movesTo(now, report)
	e.placing = now
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.moves, func(id model.ServiceID, _ tally) bool { return now[id] == nil })
	for id, m := range moves {
		e.moves[id] = tally{m.Moved, e.moves[id].total + uint64(m.Moved)}
		e.log.Info("slots moved", "service", m.Service, "moved", m.Moved, "slots", m.Slots, "share", m.Share(), "held", m.Held)
	}
}
