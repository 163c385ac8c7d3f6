package engine

import (
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// servicesTold returns what hooks about backends are told; nil: there is no such hook. Checks count even
// while all backends are used in spite of them.
func servicesTold(desired *model.Config, logs Logs, known Health, report *Report) []model.ToldService {
	about := func(h model.Hook) bool { return h.IsAbout(model.HookBackends) }
	if !slices.ContainsFunc(desired.Hooks, about) {
		return nil
	}
	list := make([]model.ToldService, len(desired.Services))
	for i := range list {
		s := &desired.Services[i]
		health := newServiceHealth(s, known)
		members := membersOf(logs[s.ID()])
		t := model.ToldService{Name: s.Name, ID: s.ID(), State: model.HookDown, Backends: make([]model.ToldBackend, len(s.Backends))}
		if report.Services[i].Up {
			t.State = model.HookUp
		}
		for j := range s.Backends {
			b := &s.Backends[j]
			state := health.told(b, members)
			if state == model.HookUp {
				t.Healthy++
			}
			t.Backends[j] = model.ToldBackend{Name: b.Name, Endpoint: b.Endpoint(), State: state}
		}
		list[i] = t
	}
	return list
}

// membersOf are the backends that some generation of a log names: they may have connections.
func membersOf(log model.Log) map[netip.AddrPort]bool {
	members := map[netip.AddrPort]bool{}
	for i := range log.Generations {
		for _, m := range log.Generations[i].Members {
			members[m.Backend] = true
		}
	}
	return members
}

// told is the state of a backend as hooks are told of it.
func (h *serviceHealth) told(b *model.Backend, members map[netip.AddrPort]bool) model.HookState {
	if h.service.Checked() && b.State != model.Down {
		switch h.of(b) {
		case model.HealthDown:
			return model.HookDown
		case model.HealthUnknown:
			return model.HookUnknown
		}
	}
	switch {
	case b.State == model.Down:
		return model.HookDown
	case owns(b):
		return model.HookUp
	case members[b.Endpoint()]:
		return model.HookDraining
	}
	return model.HookDrained
}

// owns says whether the backend gets new connections if it is healthy.
func owns(b *model.Backend) bool { return b.State == model.Active && b.Weight > 0 }
