// Package forecast says what a change of services does to traffic, and which connections it risks:
// from the slots that move, from the traffic counted for each backend, and from what agents and
// directors know about connections. It sends no questions, and changes nothing.
package forecast

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
)

// Change is a service before and after a change, and what is known about it.
type Change struct {
	engine.Shift
	Before, After *model.Service // nil: it does not exist
	WasLog        model.Log      // before
	Now           time.Time
	Group         bool // other directors apply the same change
	// Seen is the traffic of each backend per second; nil: nothing was counted.
	Seen map[netip.AddrPort]model.Rate
	// Remembered is how many flows of each backend the director remembers; nil: they were not
	// counted.
	Remembered map[netip.AddrPort]uint64
	// Down says for which backends probes fail.
	Down func(netip.AddrPort) bool
	// Reported is what a backend's agent has lately reported about the service before the change;
	// nil: it does not report.
	Reported func(netip.AddrPort) *model.ReportedService
}

// Of says what a change does to a service.
func Of(c *Change) model.PlannedService {
	p := model.PlannedService{Change: "changed", Moved: c.Moved(), Slots: c.Is.Slots, Held: c.Is.Held, Waits: c.Is.Waits, Risks: []model.Risk{}}
	switch {
	case c.Before == nil:
		p.Service, p.Change = c.After.Name, "added"
	case c.After == nil:
		p.Service, p.Change = c.Before.Name, "removed"
	default:
		p.Service = c.After.Name
	}
	ways := c.Ways(c.Down)
	p.Backends = c.backends(ways)
	c.traffic(&p, ways)
	c.open(&p)
	p.KeysGo = c.keysGo()
	for _, risk := range risks {
		if r, is := risk.find(c, &p); is {
			r.Reason, r.When = risk.reason, risk.when
			p.Risks = append(p.Risks, r)
		}
	}
	return p
}

// backends are all that the service has before or after the change; those after it come first.
func (c *Change) backends(ways map[engine.Way]float64) []model.PlannedBackend {
	list := []model.PlannedBackend{}
	was, is := shares(ways)
	place := map[netip.AddrPort]int{}
	add := func(s *model.Service, owned map[netip.AddrPort]int, share map[netip.AddrPort]float64, set func(*model.PlannedBackend, *model.PlannedLoad)) {
		if s == nil {
			return
		}
		for _, b := range s.Backends {
			key := b.Endpoint()
			at, had := place[key]
			if !had {
				at = len(list)
				place[key], list = at, append(list, model.PlannedBackend{Name: b.Name, Address: b.Address, Port: b.Port, Down: c.Down(key)})
			}
			set(&list[at], &model.PlannedLoad{State: b.State, Slots: owned[key], Share: share[key]})
		}
	}
	add(c.After, engine.Owned(c.Shift.After), is, func(b *model.PlannedBackend, l *model.PlannedLoad) { b.After = l })
	add(c.Before, engine.Owned(c.Shift.Before), was, func(b *model.PlannedBackend, l *model.PlannedLoad) { b.Before = l })
	return list
}

// shares returns which share of new connections each backend has before and after.
func shares(ways map[engine.Way]float64) (before, after map[netip.AddrPort]float64) {
	before, after = map[netip.AddrPort]float64{}, map[netip.AddrPort]float64{}
	for way, share := range ways {
		before[way.From] += share
		after[way.To] += share
	}
	return before, after
}

// traffic moves the traffic counted for each backend with its slots, as if each slot had the same
// part of it. Traffic of a backend without slots is of open connections: it ends with them.
func (c *Change) traffic(p *model.PlannedService, ways map[engine.Way]float64) {
	if c.Seen == nil || c.Before == nil {
		return
	}
	was, _ := shares(ways)
	var seen, moves model.Rate
	for _, rate := range c.Seen {
		seen = seen.Plus(rate, 1)
	}
	after := map[netip.AddrPort]model.Rate{}
	for _, way := range sortedWays(ways) { // in order: sums of floats depend on it
		rate, share := c.Seen[way.From], ways[way]/was[way.From]
		after[way.To] = after[way.To].Plus(rate, share)
		if way.From != way.To {
			moves = moves.Plus(rate, share)
		}
	}
	p.Seen, p.Moves = &seen, &moves
	if p.Change == "changed" {
		switch { // datagrams have no connections, and their flows follow the slots
		case seen.Connections > 0:
			p.Traffic, p.Of = new(moves.Connections/seen.Connections), model.SeenInConnections
		case seen.Packets > 0:
			p.Traffic, p.Of = new(moves.Packets/seen.Packets), model.SeenInPackets
		}
	}
	for i := range p.Backends {
		b := &p.Backends[i]
		key := netip.AddrPortFrom(b.Address, b.Port)
		if b.Before != nil {
			b.Before.Rate = new(c.Seen[key])
		}
		if b.After != nil {
			b.After.Rate = new(after[key])
		}
	}
}

func sortedWays(ways map[engine.Way]float64) []engine.Way {
	list := make([]engine.Way, 0, len(ways))
	for way := range ways {
		list = append(list, way)
	}
	slices.SortFunc(list, func(a, b engine.Way) int { return cmp.Or(a.From.Compare(b.From), a.To.Compare(b.To)) })
	return list
}
