package store

import (
	"fmt"

	"weir.io/weir/internal/model"
)

// Replace returns the change that makes these services the whole of an owner's set. advance makes
// each service's log from the log that its ID had in the same set, or from none. A service that is
// removed takes its log along.
func Replace(owner string, services []model.Service, advance func(model.Log, model.Service) model.Log) Change {
	return func(s State) (State, error) {
		if err := model.CheckOwner(owner); err != nil {
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

// Give returns the change that makes these documents the whole of an owner's set, with the
// logs that they have.
func Give(owner string, documents []Document) Change {
	return func(s State) (State, error) {
		if err := model.CheckOwner(owner); err != nil {
			return State{}, err
		}
		next := s.with(owner, Set{Documents: documents, Given: true})
		return next, next.check()
	}
}

// Trim returns the change that applies trim to every log, except those that are given.
func Trim(trim func(model.Log, model.Service) model.Log) Change {
	return func(s State) (State, error) {
		for _, owner := range s.Owners() {
			if s.Sets[owner].Given {
				continue
			}
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

// ConflictError is two services that cannot both exist: they have the same ID, or the same name.
type ConflictError struct {
	Shared        string // what they have in common, in words
	Names         bool   // they share the name
	Owner, Name   string // of the first, in the order of owners
	Owner2, Name2 string // of the second
	// Others are the other conflicts, up to mostConflicts.
	Others []ConflictError
}

// mostConflicts is how many conflicts are told: putting another owner's set would have thousands.
const mostConflicts = 100

// Error names both services and their owners, of each conflict.
func (e *ConflictError) Error() string {
	text := e.words()
	for i := range e.Others {
		text += "\n" + e.Others[i].words()
	}
	return text
}

// All returns this conflict and the others as single conflicts.
func (e *ConflictError) All() []ConflictError {
	first := *e
	first.Others = nil
	return append([]ConflictError{first}, e.Others...)
}

func (e *ConflictError) words() string {
	return fmt.Sprintf("%s belongs to service %q of owner %q and to service %q of owner %q: it can have one owner",
		e.Shared, e.Name, e.Owner, e.Name2, e.Owner2)
}

// check returns the conflicts among the services of a state, as one error.
func (s State) check() error {
	type claim struct{ owner, name string }
	ids, names := map[model.ServiceID]claim{}, map[string]claim{}
	var found []ConflictError
	for _, owner := range s.Owners() {
		for _, d := range s.Sets[owner].Documents {
			id, here := d.Service.ID(), claim{owner, d.Service.Name}
			note := func(shared string, isName bool, first claim) {
				found = append(found, ConflictError{Shared: shared, Names: isName, Owner: first.owner, Name: first.name, Owner2: here.owner, Name2: here.name})
			}
			same, taken := ids[id]
			if taken {
				note(named(id), false, same)
			} else {
				ids[id] = here
			}
			switch first, named := names[here.name]; {
			case !named:
				names[here.name] = here
			case !taken || first != same: // else the conflict of these two is reported already
				note(fmt.Sprintf("the name %q", here.name), true, first)
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	first := found[0]
	first.Others = found[1:min(len(found), mostConflicts)]
	return &first
}

// named returns "203.0.113.10 tcp port 443", with the segment if there is one.
func named(id model.ServiceID) string {
	text := fmt.Sprintf("%s %s port %s", id.VIP, id.Protocol, id.Port)
	if id.Segment != (model.Segment{}) {
		text += " in segment " + id.Segment.String()
	}
	return text
}
