package sets

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/forecast"
	"weir.io/weir/internal/model"
)

// Plan says what Put would change, by what the datapath counts and remembers, and by what probes find.
func (s *Sets) Plan(ctx context.Context, r api.PlanRequest) (none api.Plan, err error) {
	var planned desired.Planned
	change, err := s.change(ctx, r.Owner, r.SetText, func(services []model.Service) (api.SetChange, error) {
		planned, err = s.controller.Plan(ctx, r.Owner, services, r.Part)
		return planned.SetChange, err
	})
	if err != nil {
		return none, err
	}
	plan := api.Plan{SetChange: change, Base: planned.Base, Limits: s.limitsOf(planned.Services), Overrides: s.controller.Overridden()}
	known, err := s.observe(ctx, planned.Services, r.Measure)
	if err != nil {
		return none, err
	}
	if known.rates != nil {
		plan.Measured = model.Duration(r.Measure)
	}
	found, now := s.found(), time.Now()
	for i := range planned.Services {
		p := &planned.Services[i]
		c := forecast.Change{Shift: p.Shift, Now: now, Group: planned.Group, Reported: p.Reported, Remembered: known.flows[p.ID],
			Down: func(b netip.AddrPort) bool {
				return found[model.Target{Service: p.ID, Backend: b}].State == model.HealthDown
			}}
		if p.Before != nil {
			c.Before, c.WasLog = &p.Before.Service, p.Before.Log
		}
		if p.After != nil {
			c.After = &p.After.Service
		}
		if known.rates != nil && c.Before != nil {
			if c.Seen = known.rates[p.ID]; c.Seen == nil {
				c.Seen = map[netip.AddrPort]model.Rate{}
			}
		}
		plan.Services = append(plan.Services, forecast.Of(&c))
	}
	return plan, nil
}

// observed is what a director has seen of services that would change.
type observed struct {
	rates map[model.ServiceID]map[netip.AddrPort]model.Rate // nil: nothing was counted
	flows map[model.ServiceID]map[netip.AddrPort]uint64     // remembered flows
}

// observe counts the traffic of existing services, and their remembered flows. For others there is
// nothing to wait for.
func (s *Sets) observe(ctx context.Context, services []desired.PlannedService, measure time.Duration) (o observed, err error) {
	there := map[model.ServiceID]bool{}
	for i := range services {
		if services[i].Before != nil {
			there[services[i].ID] = true
		}
	}
	if len(there) == 0 {
		return o, nil
	}
	if measure > 0 {
		which := func(id model.ServiceID) bool { return there[id] }
		before, err := s.kernel.Count(which)
		if err != nil {
			return o, fmt.Errorf("count traffic: %w", err)
		}
		select {
		case <-time.After(measure):
		case <-ctx.Done():
			return o, ctx.Err()
		}
		after, err := s.kernel.Count(which)
		if err != nil {
			return o, fmt.Errorf("count traffic: %w", err)
		}
		o.rates = after.Since(before)
	}
	o.flows = map[model.ServiceID]map[netip.AddrPort]uint64{}
	err = s.kernel.RememberedFlows(func(some []model.RememberedFlow) bool {
		for i := range some {
			f := &some[i]
			if f.State != model.FlowOpen || !there[f.Service] {
				continue
			}
			if o.flows[f.Service] == nil {
				o.flows[f.Service] = map[netip.AddrPort]uint64{}
			}
			o.flows[f.Service][f.Backend]++
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return o, fmt.Errorf("read what is remembered of flows: %w", err)
	}
	return o, ctx.Err()
}

// limitsOf says how much of this director's limits the change takes.
func (s *Sets) limitsOf(services []desired.PlannedService) []model.PlannedLimit {
	before := s.kernel.Usage()
	after, peak := before, before
	for i := range services {
		if s := services[i].Shift.Before; s != nil {
			usage := datapath.UsageOf(s)
			after.Services -= min(after.Services, usage.Services)
			after.Backends -= min(after.Backends, usage.Backends)
			after.RingMemory -= min(after.RingMemory, usage.RingMemory)
			after.SourceRanges -= min(after.SourceRanges, usage.SourceRanges)
		}
		if s := services[i].Shift.After; s != nil {
			usage := datapath.UsageOf(s)
			after.Add(usage)
			peak.RingMemory += usage.RingMemory
		}
	}
	limit := func(name string, before, after, peak, most uint64) model.PlannedLimit {
		peak = max(peak, after)
		return model.PlannedLimit{Limit: name, Before: before, After: after, Peak: peak, Most: most, Exceeded: peak > most}
	}
	return []model.PlannedLimit{
		limit("services", before.Services, after.Services, 0, uint64(s.limits.Services)),
		limit("backends", before.Backends, after.Backends, 0, uint64(s.limits.Backends)),
		limit("ring-memory", before.RingMemory, after.RingMemory, peak.RingMemory, s.limits.RingMemory),
		limit("source-ranges", before.SourceRanges, after.SourceRanges, 0, uint64(s.limits.SourceRanges)),
	}
}
