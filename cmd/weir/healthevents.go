package main

import (
	"fmt"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// mostOfOneLook is how many events one look at backends' health makes. If more backends have
// changed, as when a rack is lost, those of a service are one event: people do not read hundreds,
// and they would push all other events out of the kept ones.
const mostOfOneLook = 20

// alike are events of one service's backends that have come to the same state.
type alike struct {
	kind           api.EventKind
	service, state string
}

// fewer makes one event of events that are alike, if there are more than people read.
func fewer(events []api.Event) []api.Event {
	if len(events) <= mostOfOneLook {
		return events
	}
	var order []alike
	of := map[alike][]api.Event{}
	for _, e := range events {
		key := alike{e.Kind, e.Service, e.State}
		if of[key] == nil {
			order = append(order, key)
		}
		of[key] = append(of[key], e)
	}
	var list []api.Event
	for i, key := range order {
		if left := order[i:]; len(list) == mostOfOneLook-1 && len(left) > 1 {
			return append(list, ofMoreServices(left, of))
		}
		list = append(list, together(key, of[key]))
	}
	return list
}

// together makes one event of many.
func together(key alike, events []api.Event) api.Event {
	if len(events) == 1 {
		return events[0]
	}
	names := make([]string, len(events))
	for i := range events {
		names[i] = events[i].Backend
	}
	is := "are " + key.state
	if key.kind == api.EventRedirect {
		is = "can be redirected to"
		if key.state == string(model.HealthDown) {
			is = "cannot be redirected to"
		}
	}
	return api.Event{Kind: key.kind, Service: key.service, State: key.state, Backends: len(events),
		Text: fmt.Sprintf("%d backends of service %s %s: %s", len(events), key.service, is, model.Some(names))}
}

// ofMoreServices is one event for all that have no room.
func ofMoreServices(left []alike, of map[alike][]api.Event) api.Event {
	e := api.Event{Kind: api.EventHealth}
	services := map[string]bool{}
	var names []string
	for _, key := range left {
		e.Backends += len(of[key])
		if !services[key.service] {
			services[key.service] = true
			names = append(names, key.service)
		}
	}
	e.Text = fmt.Sprintf("%d backends of %d more services have changed, too: of %s", e.Backends, len(services), model.Some(names))
	return e
}
