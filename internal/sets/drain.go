package sets

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Drain gives backends another state: in the sets that have them, one after the other, and beside
// the director's own file.
func (s *Sets) Drain(ctx context.Context, d api.Drain) ([]api.Drained, error) {
	state := s.controller.Sets()
	owners := state.Owners()
	if d.Owner != "" {
		owners = []string{d.Owner}
	}
	var all []api.Drained
	for _, owner := range owners {
		set := state.Sets[owner]
		found, err := s.drainSet(ctx, owner, set, d)
		if err != nil {
			return nil, wordedFor(ctx, err)
		}
		all = append(all, found...)
	}
	switch {
	case len(all) == 0:
		return nil, api.NewProblem(http.StatusNotFound, noBackend(state, owners, d)+s.elsewhere(ctx, state, d),
			api.FieldProblem{Field: "backend", Detail: "there is none of this name or address"})
	case !slices.ContainsFunc(all, func(d api.Drained) bool { return !d.Fixed }):
		return nil, api.NewProblem(http.StatusConflict, fmt.Sprintf("backend %q%s cannot be changed here: %s", d.Backend, ofService(d.Service), WhyFixed(all[0].Owner)),
			api.FieldProblem{Field: "backend", Detail: WhyFixed(all[0].Owner)})
	}
	noteLast(s.controller.Sets(), all)
	return all, nil
}

// noteLast marks what is drained of services that have no active backend any more.
func noteLast(state store.State, all []api.Drained) {
	type named struct{ owner, service string }
	without := map[named]bool{} // services without an active backend
	for _, owner := range state.Owners() {
		if !slices.ContainsFunc(all, func(d api.Drained) bool { return d.Owner == owner }) {
			continue
		}
		for _, service := range state.Sets[owner].Services() {
			without[named{owner, service.Name}] = !slices.ContainsFunc(service.Backends, func(b model.Backend) bool { return b.State == model.Active && b.Weight > 0 })
		}
	}
	for i := range all {
		d := &all[i]
		d.Last = d.State != model.Active && without[named{d.Owner, d.Service}]
	}
}

// noBackend says that there is no such backend, and which there are in the service that is meant.
func noBackend(state store.State, owners []string, d api.Drain) string {
	text := fmt.Sprintf("no service has a backend %q", d.Backend)
	if d.Service != "" {
		text = fmt.Sprintf("there is no service %q", d.Service)
	}
	for _, owner := range owners {
		for _, service := range state.Sets[owner].Services() {
			var names []string
			for _, b := range service.Backends {
				names = append(names, service.Name+"/"+b.Name)
			}
			switch {
			case service.Name == d.Service:
				return fmt.Sprintf("service %q has no backend %q; it has %s", d.Service, d.Backend, model.Some(names))
			case d.Service == "" && service.Name == d.Backend:
				return fmt.Sprintf("%s: %q is a service, with %s", text, d.Backend, model.Some(names))
			}
		}
	}
	return text
}

// elsewhere says of a backend that is in no set of the owner that is meant, and that the client sees all the same, why it
// cannot be drained.
func (s *Sets) elsewhere(ctx context.Context, state store.State, d api.Drain) string {
	if d.Owner == "" {
		return ""
	}
	only := api.CallerSegments(ctx)
	for _, owner := range state.Owners() {
		for _, service := range state.Sets[owner].Services() {
			seen := func(in model.Segment) bool { return only == nil || slices.Contains(only, in) }
			if owner != d.Owner && seen(service.Segment) && slices.ContainsFunc(service.Backends, func(b model.Backend) bool { return means(d, &service, &b) && seen(b.TenantIn(&service)) }) {
				return fmt.Sprintf(" in the set of owner %q: service %q is not of that set, and who puts it drains its backends", d.Owner, service.Name)
			}
		}
	}
	return ""
}

// WhyFixed says why the state of an owner's backend cannot change.
func WhyFixed(owner string) string {
	if owner == store.OwnerFile {
		return "the director's file itself says that it is not active; change the file"
	}
	return fmt.Sprintf("the set of owner %q comes with its logs, which other directors have, too; change it where it comes from", owner)
}

// drainSet drains those backends of one owner that are meant.
func (s *Sets) drainSet(ctx context.Context, owner string, set store.Set, d api.Drain) (found []api.Drained, err error) {
	switch {
	case owner == store.OwnerFile:
		return s.drainFile(ctx, d)
	case set.Given: // other directors would not learn of it
		return drainIn(owner, true, set.Services(), d), nil
	case len(drainIn(owner, false, set.Services(), d)) == 0:
		return nil, nil
	}
	_, err = s.controller.Edit(ctx, owner, func(services []model.Service) []model.Service {
		found = drainIn(owner, false, services, d)
		return drained(services, d)
	})
	return found, err
}

// drainFile drains backends of the director's own file beside the file. Backends that are not
// active in the file itself stay as they are.
func (s *Sets) drainFile(ctx context.Context, d api.Drain) ([]api.Drained, error) {
	file, before := s.controller.File(), model.IndexOverrides(s.controller.Overridden())
	found := drainIn(store.OwnerFile, false, file.Services, d)
	if len(found) == 0 {
		return nil, nil
	}
	var o *model.Override
	if d.State != model.Active {
		o = &model.Override{State: d.State, By: api.CallerUser(ctx), At: time.Now().UTC().Truncate(time.Second)}
	}
	unkept, err := s.controller.SetOverrides(func(service *model.Service, b *model.Backend) bool {
		return b.State == model.Active && means(d, service, b)
	}, o)
	after := model.IndexOverrides(s.controller.Overridden())
	for i := range found {
		f := &found[i]
		if f.Fixed = f.Before != model.Active; f.Fixed {
			f.State = f.Before
			continue
		}
		if is := after.Named(f.Service, f.Backend); is != nil {
			f.Override = &is.Override
		}
		if unkept != nil {
			f.Unkept = unkept.Error()
		}
		if was := before.Named(f.Service, f.Backend); was != nil {
			f.Before = was.State
		}
	}
	return found, err
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
