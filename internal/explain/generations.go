package explain

import (
	"net/netip"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
)

// NameGenerations adds to the candidates of a flow which generations of the service's log
// place it on them, the newest first.
func NameGenerations(e *model.Explanation, log model.Log, placements *engine.Placements) {
	if e.Service == nil || e.Flow == nil || e.Slot == nil {
		return
	}
	f := model.Flow{Segment: e.Flow.Segment, Source: e.Flow.Source.Addr(), Destination: e.Flow.Destination.Addr(),
		SourcePort: e.Flow.Source.Port(), DestinationPort: e.Flow.Destination.Port(), Protocol: e.Flow.Protocol}
	salt := e.Service.ID.Salt()
	for i := range log.Generations {
		g := &log.Generations[i]
		owner, backup := placements.Of(g, f, salt, i == min(log.Coming, len(log.Generations)-1))
		note(e, owner, model.ExplainedGeneration{Number: g.Number})
		note(e, backup, model.ExplainedGeneration{Number: g.Number, Backup: true})
	}
}

// note adds a generation to each row's candidate with this address.
func note(e *model.Explanation, backend netip.AddrPort, g model.ExplainedGeneration) {
	for _, slot := range []*model.ExplainedSlot{e.Slot, e.Before} {
		if slot == nil || !backend.IsValid() {
			continue
		}
		for i := range slot.Candidates {
			if c := &slot.Candidates[i]; c.Backend == backend {
				c.Generations = append(c.Generations, g)
			}
		}
	}
}
