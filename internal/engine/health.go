package engine

import (
	"cmp"
	"net/netip"

	"weir.io/weir/internal/model"
)

// Health is what is known about the health of backends. A backend that is not in it counts as
// healthy: it is not checked, or was in service before its check.
type Health map[model.Target]model.HealthState

// Checks returns the checks that a configuration asks for. Serving says which backends get
// connections already. A backend that is down because the configuration says so is left
// alone.
func Checks(desired *model.Config, serving func(model.Target) bool) []model.Check {
	var checks []model.Check
	links := desired.SegmentInterfaces()
	host := &model.CheckHost{Interfaces: desired.Director.Interfaces, TunnelSource: desired.Director.TunnelSource, Directors: desired.Directors, VTEP: desired.Director.VTEP, Segments: desired.Segments}
	own := map[model.Segment][]netip.Addr{}
	for i := range desired.Segments {
		own[desired.Segments[i].ID] = desired.Segments[i].Addresses
	}
	for i := range desired.Services {
		s := &desired.Services[i]
		checks = append(checks, redirectChecks(s, serving)...)
		if !s.Checked() {
			continue
		}
		for j := range s.Backends {
			b := &s.Backends[j]
			if b.State == model.Down {
				continue
			}
			target := model.Target{Service: s.ID(), Backend: b.Endpoint()}
			check := model.Check{
				Target: target, Service: s.Name, Backend: b.Name, How: s.Health,
				To: s.ProbeAddress(b), Serving: serving(target), Programs: desired.Director.ExecChecks,
			}
			if s.Health.Kind != model.CheckExec { // a program finds its own way
				check.Way = wayOf(s, b, host, links, own)
			}
			checks = append(checks, check)
		}
	}
	return checks
}

// redirectChecks are the probes of whether connections of a service can be handed over to its
// backends.
func redirectChecks(s *model.Service, serving func(model.Target) bool) (checks []model.Check) {
	if !s.ProbesRedirects() {
		return nil
	}
	how := s.RedirectCheck()
	for i := range s.Backends {
		b := &s.Backends[i]
		if b.State == model.Down || !b.RedirectsIn(s) {
			continue
		}
		target := model.Target{Service: s.ID(), Backend: b.Endpoint(), Redirect: true}
		checks = append(checks, model.Check{
			Target: target, Service: s.Name, Backend: b.Name, How: how, To: b.RedirectedTo(s), Serving: serving(target),
		})
	}
	return checks
}

// wayOf is the way of the service's packets to a backend, if its checks take it: to the VIP or, where only the
// way is the same, to the backend's own address. The host's routes do not lead into a tenant's network.
func wayOf(s *model.Service, b *model.Backend, host *model.CheckHost, links map[model.Segment]string, own map[model.Segment][]netip.Addr) *model.CheckWay {
	in := b.TenantIn(s)
	direct := !s.ChecksVIP(b)
	if direct && in == (model.Segment{}) {
		return nil
	}
	return &model.CheckWay{Direct: direct, Own: own[in], CheckHost: host, VIP: s.VIP, Segment: s.Segment, Backend: model.TableBackend{
		Name: b.Name, Address: b.Address, Mode: b.ModeIn(*s), MAC: b.MAC, VLAN: b.Tag(), MTU: b.MTU,
		Interface: cmp.Or(b.Interface, links[in]), Segment: in, Left: b.Leaves(s), Place: b.Place(),
	}}
}

// serviceHealth is the result of health for a service: the backends that it uses.
type serviceHealth struct {
	service *model.Service
	known   Health
	counts  model.ServiceHealth
	tier    uint8             // that gets new connections
	each    []model.TierState // nil: there is one
}

func newServiceHealth(s *model.Service, known Health) serviceHealth {
	h := serviceHealth{service: s, known: known}
	enough := h.chooseTier()
	if !s.Checked() {
		return h
	}
	h.counts.Kind = s.Health.Kind
	for i := range s.Backends {
		b := &s.Backends[i]
		if b.State != model.Active || b.Weight == 0 {
			continue // it would get no connections if it were healthy
		}
		switch h.of(b) {
		case model.HealthDown:
			h.counts.Down++
		case model.HealthUnknown:
			h.counts.Unknown++
		default:
			h.counts.Up++
		}
	}
	// Backends about which nothing is known yet do not count here. A service that has a tier with enough healthy backends
	// needs no others.
	h.counts.Panic = s.TooFew(h.counts.Up, h.counts.Down) && !(h.each != nil && enough && s.LeastHealthy() > 0)
	return h
}

// chooseTier finds the tier that gets new connections, and reports whether enough backends are healthy with it. A backend about
// which nothing is known yet does not count.
func (h *serviceHealth) chooseTier() (enough bool) {
	if !h.service.Tiered() {
		return true
	}
	h.each = make([]model.TierState, h.service.Tiers())
	for i := range h.each {
		h.each[i].Tier = uint8(i)
	}
	for i := range h.service.Backends {
		b := &h.service.Backends[i]
		if b.State == model.Draining || b.Weight == 0 {
			continue // it gets no new connections
		}
		h.each[b.Tier].Backends++
		if b.State == model.Active && (!h.service.Checked() || h.of(b) != model.HealthDown && h.of(b) != model.HealthUnknown) {
			h.each[b.Tier].Healthy++
		}
	}
	of := h.tiers()
	h.tier = of.Active
	return of.Enough()
}

// tiers says which tier gets new connections, and why; nil: there is one.
func (h *serviceHealth) tiers() *model.ServiceTiers {
	if h.each == nil {
		return nil
	}
	t := &model.ServiceTiers{Needs: h.service.LeastHealthy(), Tiers: h.each}
	t.Choose()
	return t
}

func (h *serviceHealth) of(b *model.Backend) model.HealthState {
	return h.known[model.Target{Service: h.service.ID(), Backend: b.Endpoint()}]
}

// redirects reports whether connections are handed over to a backend: it has answered that it can
// take them, or is not probed. While that is not known, connections use the fallback, which always
// works.
func (h *serviceHealth) redirects(b *model.Backend) bool {
	if !b.RedirectsIn(h.service) {
		return false
	}
	state, asked := h.known[model.Target{Service: h.service.ID(), Backend: b.Endpoint(), Redirect: true}]
	return !asked || state == model.HealthUp
}

// isUnwell reports whether the next process must not take a backend for healthy before its own
// probes say so.
func (h *serviceHealth) isUnwell(b *model.Backend) bool {
	if !h.service.Checked() {
		return b.State == model.Down
	}
	state := h.of(b)
	return b.State == model.Down || state == model.HealthDown || state == model.HealthUnknown
}

// report is the health of the service for reports; nil: it is not checked.
func (h *serviceHealth) report() *model.ServiceHealth {
	if !h.service.Checked() {
		return nil
	}
	return &h.counts
}

// state is desired state and health together. When so few backends are healthy that the checks are
// likelier to be wrong than the backends, all are used. A backend about which nothing is known yet
// is left out as long as there are others.
func (h *serviceHealth) state(b *model.Backend) model.BackendState {
	if h.counts.Panic {
		return b.State
	}
	return h.found(b)
}

// isUp reports whether enough backends are left for packets to come here. Probes count even while
// all backends are used in spite of them: other directors may see more healthy ones. A draining
// backend counts: its connections go on only while their packets come here.
func (h *serviceHealth) isUp() bool {
	left := uint32(0)
	for i := range h.service.Backends {
		if h.found(&h.service.Backends[i]).Alive() {
			left++
		}
	}
	return left >= h.service.LeastHealthy()
}

// found is desired state and the result of probes of a backend.
func (h *serviceHealth) found(b *model.Backend) model.BackendState {
	if !h.service.Checked() {
		return b.State
	}
	switch state := h.of(b); {
	case state == model.HealthDown:
		return model.Suspect // this director's checks may fail alone
	case state == model.HealthUnknown && h.counts.Up > 0:
		return model.Down
	}
	return b.State
}
