package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Drain gives backends of sets another state, one set after the other.
func (s *sets) Drain(ctx context.Context, d api.Drain) ([]api.Drained, error) {
	state := s.keeper.Sets()
	owners := state.Owners()
	if d.Owner != "" {
		owners = []string{d.Owner}
	}
	var all []api.Drained
	for _, owner := range owners {
		// What comes with logs other directors have, too: they would not learn of it.
		fixed := owner == store.OwnerFile || state.Sets[owner].Given
		found := drainIn(owner, fixed, state.Sets[owner].Services(), d)
		if len(found) > 0 && !fixed {
			_, err := s.keeper.Edit(ctx, owner, func(services []model.Service) []model.Service {
				found = drainIn(owner, false, services, d)
				return drained(services, d)
			})
			if err != nil {
				return nil, worded(err)
			}
		}
		all = append(all, found...)
	}
	fixed := func(d api.Drained) bool { return d.Fixed }
	switch {
	case len(all) == 0:
		return nil, api.NewProblem(http.StatusNotFound, fmt.Sprintf("no set has a backend %q%s", d.Backend, ofService(d.Service)),
			api.FieldProblem{Field: "backend", Detail: "there is none of this name or address"})
	case !slices.ContainsFunc(all, func(d api.Drained) bool { return !fixed(d) }):
		return nil, api.NewProblem(http.StatusConflict, fmt.Sprintf("backend %q%s is in the director's own file alone, or in sets that come with their logs: change these where they come from", d.Backend, ofService(d.Service)),
			api.FieldProblem{Field: "backend", Detail: "is in the director's own file, or in a set that comes with its logs"})
	}
	return all, nil
}

func ofService(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" of service %q", name)
}

// means reports whether a drain is about a backend.
func means(d api.Drain, s *model.Service, b *model.Backend) bool {
	return (d.Service == "" || d.Service == s.Name) && (d.Backend == b.Name || d.Backend == b.Address.String())
}

// drainIn lists the backends of services that a drain is about.
func drainIn(owner string, fixed bool, services []model.Service, d api.Drain) (found []api.Drained) {
	for i := range services {
		s := &services[i]
		for j := range s.Backends {
			if b := &s.Backends[j]; means(d, s, b) {
				one := api.Drained{Owner: owner, Service: s.Name, Backend: b.Name, Before: b.State, State: d.State, Fixed: fixed}
				if one.Fixed {
					one.State = b.State
				}
				found = append(found, one)
			}
		}
	}
	return found
}

// drained returns the services with the states that a drain asks for.
func drained(services []model.Service, d api.Drain) []model.Service {
	services = slices.Clone(services)
	for i := range services {
		s := &services[i]
		s.Backends = slices.Clone(s.Backends)
		for j := range s.Backends {
			if b := &s.Backends[j]; means(d, s, b) {
				b.State = d.State
			}
		}
	}
	return services
}
