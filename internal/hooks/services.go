package hooks

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// told is what a hook may know of services, by what packets name them by.
type told map[model.ServiceID]*toldService

// toldService is what a hook may know of one service. A state is what the hook took last of it; empty:
// the hook has taken none. It is unsure if a call that told another state has failed: the hook may have
// it or not, so it is told again.
type toldService struct {
	name     string
	state    model.HookState
	unsure   bool
	backends map[netip.AddrPort]toldBackend
}

type toldBackend struct {
	name   string
	state  model.HookState
	unsure bool
}

// isNews says whether a hook has to be told a state. What it was never told is up.
func isNews(state, was model.HookState, unsure bool) bool {
	return unsure || state != cmp.Or(was, model.HookUp)
}

// toldOf is what a hook knows that has taken these services.
func toldOf(services []model.ToldService) told {
	t := told{}
	for i := range services {
		s := &services[i]
		known := &toldService{name: s.Name, state: s.State, backends: make(map[netip.AddrPort]toldBackend, len(s.Backends))}
		for _, b := range s.Backends {
			known.backends[b.Endpoint] = toldBackend{name: b.Name, state: b.State}
		}
		t[s.ID] = known
	}
	return t
}

// add notes that a hook is told of services, and may not take the call.
func (t *told) add(services []model.ToldService) {
	if *t == nil {
		*t = told{}
	}
	for i := range services {
		s := &services[i]
		known := (*t)[s.ID]
		if known == nil {
			known = &toldService{backends: map[netip.AddrPort]toldBackend{}}
			(*t)[s.ID] = known
		}
		known.name, known.unsure = s.Name, isNews(s.State, known.state, known.unsure)
		for _, b := range s.Backends {
			was := known.backends[b.Endpoint]
			known.backends[b.Endpoint] = toldBackend{b.Name, was.state, isNews(b.State, was.state, was.unsure)}
		}
	}
}

// services are those of which the hook has to be told: what is not what the hook took last. What the
// hook has never taken is up if it is not told.
func (n *notifier) services(now []model.ToldService) []model.HookService {
	var list []model.HookService
	stays := make(map[model.ServiceID]bool, len(now))
	for i := range now {
		s := &now[i]
		stays[s.ID] = true
		if changed, is := n.may[s.ID].changes(s); is {
			list = append(list, changed)
		}
	}
	for id, known := range n.may {
		if !stays[id] {
			list = append(list, known.gone(id))
		}
	}
	slices.SortFunc(list, func(a, b model.HookService) int { return cmp.Compare(a.Service, b.Service) })
	return list
}

// changes are what is different of a service.
func (t *toldService) changes(s *model.ToldService) (changed model.HookService, is bool) {
	if t == nil {
		t = &toldService{}
	}
	changed = model.HookService{Service: s.Name, ServiceID: s.ID, State: s.State, Was: t.state, Healthy: s.Healthy, Total: len(s.Backends), Backends: []model.HookBackend{}}
	is = isNews(s.State, t.state, t.unsure) || t.name != "" && t.name != s.Name
	stays := make(map[netip.AddrPort]bool, len(s.Backends))
	for _, b := range s.Backends {
		stays[b.Endpoint] = true
		was := t.backends[b.Endpoint]
		if isNews(b.State, was.state, was.unsure) || was.name != "" && was.name != b.Name {
			changed.Backends = append(changed.Backends, hookBackend(b.Name, b.Endpoint, b.State, was.state))
		}
	}
	for _, endpoint := range slices.SortedFunc(maps.Keys(t.backends), netip.AddrPort.Compare) {
		if was := t.backends[endpoint]; !stays[endpoint] {
			changed.Backends = append(changed.Backends, hookBackend(was.name, endpoint, model.HookGone, was.state))
		}
	}
	return changed, is || len(changed.Backends) > 0
}

// gone is what is told of a service that the configuration does not have any more.
func (t *toldService) gone(id model.ServiceID) model.HookService {
	s := model.HookService{Service: t.name, ServiceID: id, State: model.HookGone, Was: t.state, Backends: []model.HookBackend{}}
	for _, endpoint := range slices.SortedFunc(maps.Keys(t.backends), netip.AddrPort.Compare) {
		was := t.backends[endpoint]
		s.Backends = append(s.Backends, hookBackend(was.name, endpoint, model.HookGone, was.state))
	}
	return s
}

func hookBackend(name string, endpoint netip.AddrPort, state, was model.HookState) model.HookBackend {
	return model.HookBackend{Backend: name, Address: endpoint.Addr(), Port: endpoint.Port(), State: state, Was: was}
}
