package director

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/datapath/observe"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
)

// explain is the API's way to the datapath.
func (d *Director) explain(ctx context.Context, q model.Question) (model.Explanation, error) {
	e, err := d.decide(ctx, q)
	if err == nil {
		d.nameCauses(&e)
		e.Steps = explain.Steps(&e)
	}
	return e, err
}

// nameCauses names, for each candidate, the client that has overridden its state in the file, and why its health
// check fails.
func (d *Director) nameCauses(e *model.Explanation) {
	if e.Service == nil || e.Slot == nil {
		return
	}
	overrides, unhealthy := model.IndexOverrides(d.controller.Overridden()), d.unhealthy(e.Service.Name)
	for i := range e.Slot.Candidates {
		c := &e.Slot.Candidates[i]
		if o := overrides.Named(e.Service.Name, c.Name); o != nil {
			c.Override = &o.Override
		}
		if c.State == model.Down || c.State == model.Suspect {
			c.Unhealthy = unhealthy[c.Name]
		}
	}
}

// unhealthy returns why checks of a service's backends fail, by the backends' names.
func (d *Director) unhealthy(service string) map[string]string {
	services := d.runningServices()
	i := slices.IndexFunc(services, func(s model.Service) bool { return s.Name == service })
	if i < 0 {
		return nil
	}
	found, why := d.checker.Results(), map[string]string{}
	for j := range services[i].Backends {
		b := &services[i].Backends[j]
		if h := found[model.Target{Service: services[i].ID(), Backend: b.Endpoint()}]; h.State == model.HealthDown && h.Reason != "" {
			why[b.Name] = h.Reason + ": " + h.Detail
		}
	}
	return why
}

// decide asks the datapath what it does with a packet.
func (d *Director) decide(ctx context.Context, q model.Question) (model.Explanation, error) {
	unprocessable := func(err error) error { return api.NewProblem(http.StatusUnprocessableEntity, err.Error()) }
	name, frame, made, err := d.frameOf(&q)
	if err != nil {
		return model.Explanation{}, unprocessable(err)
	}
	if q.With != nil {
		e, err := d.explainWith(ctx, &q, name, frame)
		e.Tunnel = made
		return e, err
	}
	e, err := d.kernel.Explain(name, frame)
	e.Tunnel = made
	if err != nil || e.Service == nil {
		return e, err
	}
	if log, is := d.controller.Log(e.Service.ID); is {
		explain.NameGenerations(&e, log, &d.placements)
	}
	return e, nil
}

// explainWith answers as if a set had been put.
func (d *Director) explainWith(ctx context.Context, q *model.Question, name string, frame []byte) (none model.Explanation, err error) {
	joint, logs, err := d.sets.Preview(ctx, q.With.Owner, q.With.Services)
	if err != nil {
		return none, err
	}
	e, err := d.kernel.ExplainWith(d.engine.Preview(joint, logs), name, frame)
	if unfit := (*datapath.UnfitError)(nil); errors.As(err, &unfit) {
		return none, api.NewProblem(http.StatusUnprocessableEntity, err.Error(), api.FieldProblem{Field: "with.services", Detail: err.Error()})
	}
	if err == nil && e.Service != nil {
		explain.NameGenerations(&e, logs[e.Service.ID], &d.placements)
	}
	return e, err
}

// capture is the API's way to the datapath.
func (d *Director) capture(ctx context.Context, wanted model.Capture) (api.CaptureRun, error) {
	c, err := d.kernel.StartCapture(ctx, api.CallerName(ctx), wanted)
	var fields model.FieldErrors
	switch {
	case errors.As(err, &fields):
		p := api.NewProblem(http.StatusUnprocessableEntity, err.Error())
		for _, f := range fields {
			p.Errors = append(p.Errors, api.FieldProblem{Field: f.Path, Detail: f.Problem})
		}
		return nil, p
	case errors.Is(err, observe.ErrCapturing):
		return nil, api.NewProblem(http.StatusConflict, err.Error())
	case errors.Is(err, observe.ErrNothingForwarded):
		return nil, api.NewProblem(http.StatusServiceUnavailable, err.Error())
	case err != nil:
		return nil, err
	}
	return c.Run, nil
}

// flowTick is the unit of a remembered flow's age, which is counted in 2^30 ns.
const flowTick = time.Duration(1 << 30)

var flowStates = map[model.RememberedState]string{model.FlowOpening: "opening", model.FlowOpen: "open", model.FlowClosing: "closing", model.FlowReset: "reset"}

// flows lists the remembered flows.
func (d *Director) flows(ctx context.Context, q api.FlowQuery) (api.Flows, error) {
	names := map[model.ServiceID]string{}
	known := q.Service == ""
	meant := func(in model.Segment) bool { return q.Only == nil || slices.Contains(q.Only, in) }
	for _, s := range d.Config().Services {
		names[s.ID()] = s.Name
		known = known || s.Name == q.Service && meant(s.Segment)
	}
	if !known {
		return api.Flows{}, api.NewProblem(http.StatusNotFound, fmt.Sprintf("there is no service %q", q.Service),
			api.FieldProblem{Field: "query.service", Detail: "there is none of this name"})
	}
	var list api.Flows
	add := func(table string, f *model.RememberedFlow, source netip.AddrPort) (room bool) {
		name := names[f.Service]
		if q.Service != "" && name != q.Service || !meant(f.Service.Segment) || q.Client.IsValid() && f.Source.Addr() != q.Client || q.Backend.IsValid() && f.Backend.Addr() != q.Backend {
			return true
		}
		if len(list.Flows) == q.Most {
			list.More = true
			return false
		}
		list.Flows = append(list.Flows, api.Flow{Table: table, Service: name, Segment: f.Service.Segment, Client: f.Source, VIP: f.Service.VIP, Port: f.Port, Backend: f.Backend, Source: source,
			Class: f.Class.String(), State: flowStates[f.State], Idle: model.Duration((time.Duration(f.Age) * flowTick).Round(time.Second))})
		return true
	}
	err := d.kernel.RememberedFlows(func(some []model.RememberedFlow) bool {
		for i := range some {
			if !add(api.TableFlowMemory, &some[i], netip.AddrPort{}) {
				return false
			}
		}
		return ctx.Err() == nil
	})
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return list, fmt.Errorf("read what is remembered of flows: %w", err)
	}
	err = d.kernel.NATFlows(func(some []model.NATFlow) bool {
		for i := range some {
			if !add(api.TableFullNAT, &some[i].RememberedFlow, some[i].Own) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return list, fmt.Errorf("read the flows of full NAT: %w", err)
	}
	return list, nil
}

// ring says which backends own a service's slots, and what has moved with the last change, for as
// long as the service's log has the generation before it.
func (d *Director) ring(name string) (api.Ring, bool) {
	s, there := d.kernel.Service(name)
	if !there {
		return api.Ring{}, false
	}
	id := model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}
	log, _ := d.controller.Log(id)
	var before []netip.AddrPort
	// Coming generations place nothing yet; the ring is that of the next older one.
	if place := log.Coming + 1; place < len(log.Generations) {
		in := log.Generations[place].InTier(s.Tier)
		before = d.placements.Owners(&in)
	}
	return ringOf(&s, before), true
}

// ringOf compares a ring with the owners that its slots had before.
func ringOf(s *model.TableService, before []netip.AddrPort) api.Ring {
	r := api.Ring{Service: s.Name, Segment: s.Segment, Owners: make([]int, len(s.Ring.Slots)), Compared: len(before) > 0 && len(before) == len(s.Ring.Slots)}
	places := map[netip.AddrPort]int{{}: -1}
	for i := range s.Backends {
		places[netip.AddrPortFrom(s.Backends[i].Address, s.Backends[i].Port)] = i
		r.Backends, r.Segments = append(r.Backends, s.Backends[i].Name), append(r.Segments, s.Backends[i].Segment)
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
