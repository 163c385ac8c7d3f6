package store

import (
	"fmt"

	"weir.io/weir/internal/model"
)

// Replace returns the change that makes these services the whole of an owner's set.
// Each service's log is what advance makes of the log that its ID had in the same
// set, or of none. A service that is no longer there takes its log along.
func Replace(owner string, services []model.Service, advance func(model.Log, model.Service) model.Log) Change {
	return func(s State) (State, error) {
		if err := CheckOwner(owner); err != nil {
			return State{}, err
		}
		logs := make(map[model.ServiceID]model.Log, len(s.Sets[owner].Documents))
		for _, d := range s.Sets[owner].Documents {
			logs[d.Service.ID()] = d.Log
		}
		set := Set{Documents: make([]Document, len(services))}
		for i, service := range services {
			set.Documents[i] = Document{Service: service, Log: advance(logs[service.ID()], service)}
		}
		next := s.with(owner, set)
		return next, next.check()
	}
}

// Trim returns the change that makes every log what trim makes of it.
func Trim(trim func(model.Log, model.Service) model.Log) Change {
	return func(s State) (State, error) {
		for _, owner := range s.Owners() {
			before := s.Sets[owner].Documents
			set := Set{Documents: make([]Document, len(before))}
			for i, d := range before {
				set.Documents[i] = Document{Service: d.Service, Log: trim(d.Log, d.Service)}
			}
			s = s.with(owner, set)
		}
		return s, nil
	}
}

// ConflictError is two services that cannot both be: they have the same ID, or the
// same name.
type ConflictError struct {
	Shared        string // what they have in common, in words
	Names         bool   // it is the name
	Owner, Name   string // of the first, in the order of owners
	Owner2, Name2 string // of the second
}

// Error names both services and their owners.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s belongs to service %q of owner %q and to service %q of owner %q: it can have one owner",
		e.Shared, e.Name, e.Owner, e.Name2, e.Owner2)
}

// check returns the first conflict among the services of a state.
func (s State) check() error {
	type claim struct{ owner, name string }
	ids, names := map[model.ServiceID]claim{}, map[string]claim{}
	for _, owner := range s.Owners() {
		for _, d := range s.Sets[owner].Documents {
			id, here := d.Service.ID(), claim{owner, d.Service.Name}
			if first, taken := ids[id]; taken {
				return &ConflictError{named(id), false, first.owner, first.name, here.owner, here.name}
			}
			if first, taken := names[here.name]; taken {
				return &ConflictError{fmt.Sprintf("the name %q", here.name), true, first.owner, first.name, here.owner, here.name}
			}
			ids[id], names[here.name] = here, here
		}
	}
	return nil
}
