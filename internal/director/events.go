package director

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
)

// watcher finds events by comparing the current state with the earlier one: so no other code has to
// know of it, and what comes and goes in between is no event.
type watcher struct {
	d        *Director
	events   *api.Events
	state    store.State
	tags     map[string]string // of sets, by owner
	health   map[model.Target]model.HealthState
	changes  uint64          // of states that are in health
	given    []model.Service // of the file, without overrides
	override []model.BackendOverride
	sessions map[string]model.SessionState
	tiers    map[string]uint8 // of services that have several: which gets new connections
}

// changesText says which services of an owner have changed.
func changesText(before, after store.State, owner string) string {
	change := desired.ChangeOf(before, after, owner)
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"added", change.Added}, {"changed", change.Changed}, {"removed", change.Removed}} {
		if len(p.names) > 0 {
			parts = append(parts, p.what+" "+model.Some(p.names))
		}
	}
	if parts == nil {
		return "" // only their order has changed
	}
	return ": " + strings.Join(parts, "; ")
}

// run looks until the context ends. Its caller makes the first look.
func (w *watcher) run(ctx context.Context) {
	d, events := w.d, w.events
	d.Problems.Follow(func(changes []problems.Change) { events.Add(daemon.ProblemEvents(changes)...) })
	turned := d.checker.Watch()
	tick := time.NewTicker(daemon.LookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-turned:
			events.Add(w.lookAtHealth()...)
		case <-tick.C:
			events.Add(w.look()...)
		}
	}
}

func (w *watcher) look() []api.Event {
	w.d.followLate()
	w.d.gather()
	w.d.keepWhatRuns()
	w.d.say()
	state, file, overrides := w.d.controller.Now()
	return slices.Concat(w.lookAtSets(state, file.Services), w.lookAtOverrides(overrides, file.Services), w.lookAtHealth(), w.lookAtTiers(), w.lookAtBGP())
}

// lookAtSets compares services only when the state is a new one: often only its logs have changed.
func (w *watcher) lookAtSets(state store.State, given []model.Service) (found []api.Event) {
	if w.tags != nil && state.Revision == w.state.Revision {
		return nil
	}
	first := w.tags == nil
	fileChanged := !model.SameMemory(w.given, given)
	w.given = given
	before := w.state.Sets
	tags := map[string]string{}
	for _, owner := range state.Owners() {
		set := state.Sets[owner]
		if old, had := before[owner]; had && model.SameMemory(old.Documents, set.Documents) {
			tags[owner] = w.tags[owner]
			continue
		}
		if tags[owner] = set.Tag(); tags[owner] == w.tags[owner] || first {
			continue
		}
		event := api.Event{Kind: api.EventSet, Owner: owner, Revision: state.Revision, Text: fmt.Sprintf("owner %q has another set, of %s%s", owner, daemon.ServicesText(len(set.Documents)), changesText(w.state, state, owner))}
		if owner == store.OwnerFile {
			if !fileChanged {
				continue // its overrides have: see lookAtOverrides
			}
			event.Kind, event.Text = api.EventFile, fmt.Sprintf("the director's file has other services, %d%s", len(set.Documents), changesText(w.state, state, store.OwnerFile))
		}
		found = append(found, event)
	}
	w.state, w.tags = state, tags
	if len(found) > 0 {
		w.d.examiner.Wake()
	}
	return found
}

// lookAtOverrides compares the overrides of the file's backends.
func (w *watcher) lookAtOverrides(now []model.BackendOverride, file []model.Service) (found []api.Event) {
	last := w.override
	if w.override = now; slices.Equal(now, last) {
		return nil
	}
	before, after := model.IndexOverrides(last), model.IndexOverrides(now)
	event := func(o *model.BackendOverride, state, format string, args ...any) {
		found = append(found, api.Event{Kind: api.EventOverride, Service: o.Service, Segment: segmentOf(file, o.Service), Backend: o.Backend, State: state,
			Text: fmt.Sprintf("backend %s of service %s ", o.Backend, o.Service) + fmt.Sprintf(format, args...)})
	}
	for i := range now {
		o := &now[i]
		if was := before.Named(o.Service, o.Backend); was == nil || was.Address != o.Address || was.State != o.State || !was.At.Equal(o.At) {
			event(o, o.State.String(), "is %s by %s, beside the director's file", o.State, cmp.Or(o.By, "an unknown client"))
		}
	}
	for i := range last {
		o := &last[i]
		switch {
		case after.Named(o.Service, o.Backend) != nil:
		case hasBackend(file, o):
			event(o, "", "has the state again that the director's file gives it")
		default:
			event(o, "", "is not in the director's file any more, and so its override has ended")
		}
	}
	return found
}

// segmentOf is the segment of the service of a name; none if there is no such service.
func segmentOf(services []model.Service, name string) model.Segment {
	for i := range services {
		if services[i].Name == name {
			return services[i].Segment
		}
	}
	return model.Segment{}
}

// hasBackend reports whether services have the backend of an override.
func hasBackend(services []model.Service, o *model.BackendOverride) bool {
	return slices.ContainsFunc(services, func(s model.Service) bool {
		return s.Name == o.Service && slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return b.Name == o.Backend })
	})
}

// lookAtHealth compares states only when one may have changed: there may be many.
func (w *watcher) lookAtHealth() (found []api.Event) {
	changes := w.d.checker.Changes() // before the results: changes meanwhile are looked at again
	if w.health != nil && changes == w.changes {
		return nil
	}
	w.changes = changes
	results := w.d.checker.Results()
	now := make(map[model.Target]model.HealthState, len(results))
	var changed []model.Target
	for target, h := range results {
		now[target] = h.State
		// A new backend is expected to be healthy.
		before, had := w.health[target]
		if !had {
			before = model.HealthUnknown
		}
		if w.health != nil && before != h.State && (before != model.HealthUnknown || h.State == model.HealthDown) {
			changed = append(changed, target)
		}
	}
	w.health = now
	if len(changed) == 0 {
		return nil
	}
	names := w.d.targetNames(changed)
	for _, target := range changed {
		h, name := results[target], names[target]
		if target.Redirect {
			event := redirectEvent(h, name)
			event.Segment = target.Service.Segment
			found = append(found, event)
			continue
		}
		event := api.Event{Kind: api.EventHealth, Service: name.service, Segment: target.Service.Segment, Backend: name.backend, State: string(h.State),
			Text: fmt.Sprintf("backend %s of service %s is %s", name.backend, name.service, h.State)}
		if h.State == model.HealthDown && h.Reason != "" {
			event.Text += ": " + h.Reason + ": " + h.Detail
		}
		found = append(found, event)
	}
	return mergeEvents(found)
}

// lookAtTiers compares the tiers that get new connections.
func (w *watcher) lookAtTiers() (found []api.Event) {
	now := map[string]uint8{}
	for _, s := range w.d.engine.Report().Services {
		if s.Tiers == nil {
			continue
		}
		now[s.Name] = s.Tier
		if before, had := w.tiers[s.Name]; had && before != s.Tier || !had && w.tiers != nil && s.Tier > 0 {
			found = append(found, api.Event{Kind: api.EventTier, Service: s.Name, Segment: s.ID.Segment, State: strconv.Itoa(int(s.Tier)),
				Text: fmt.Sprintf("tier %d of service %s gets new connections: %s", s.Tier, s.Name, s.Tiers.Why())})
		}
	}
	w.tiers = now
	return found
}

// redirectEvent is about a backend to which connections are handed over again, or no longer.
func redirectEvent(h model.BackendHealth, name targetName) api.Event {
	event := api.Event{Kind: api.EventRedirect, Service: name.service, Backend: name.backend, State: string(h.State)}
	if h.State == model.HealthDown {
		event.Text = fmt.Sprintf("backend %s of service %s cannot be redirected to: %s: %s", name.backend, name.service, h.Reason, h.Detail)
	} else {
		event.Text = fmt.Sprintf("backend %s of service %s can be redirected to", name.backend, name.service)
	}
	return event
}

// targetName is what people call a backend of a service.
type targetName struct{ service, backend string }

func (d *Director) targetNames(targets []model.Target) map[model.Target]targetName {
	names := make(map[model.Target]targetName, len(targets))
	for _, t := range targets {
		names[t] = targetName{t.Service.VIP.String(), t.Backend.String()} // gone meanwhile
	}
	for _, s := range d.Config().Services {
		for i := range s.Backends {
			for _, redirect := range []bool{false, true} {
				t := model.Target{Service: s.ID(), Backend: s.Backends[i].Endpoint(), Redirect: redirect}
				if _, asked := names[t]; asked {
					names[t] = targetName{s.Name, s.Backends[i].Name}
				}
			}
		}
	}
	return names
}

func (w *watcher) lookAtBGP() (found []api.Event) {
	now := map[string]model.SessionState{}
	for _, n := range w.d.announcers.bgp.Status().Neighbors {
		now[n.Name()] = n.State
		if before, had := w.sessions[n.Name()]; had && before != n.State {
			event := api.Event{Kind: api.EventBGP, Neighbor: n.Name(), State: string(n.State),
				Text: fmt.Sprintf("the session with %v is %s", n.Name(), n.State)}
			if n.Problem != "" && n.State != model.SessionEstablished {
				event.Text += ": " + n.Problem
			}
			found = append(found, event)
		}
	}
	w.sessions = now
	return found
}

// mostOfOneLook is how many events one look at backends' health makes. If more backends have
// changed, as when a rack is lost, those of a service are one event: people do not read hundreds,
// and they would push all other events out of the kept ones. Segments share these, but each has one.
const mostOfOneLook = 20

// alike are events of one service's backends that have come to the same state.
type alike struct {
	kind           api.EventKind
	segment        model.Segment
	service, state string
}

// mergeEvents makes one event of events that are alike, if there are more than people read. An event is of one
// segment alone, so that its tenant may read it.
func mergeEvents(events []api.Event) (list []api.Event) {
	if len(events) <= mostOfOneLook {
		return events
	}
	var segments []model.Segment
	of := map[model.Segment][]api.Event{}
	for _, e := range events {
		if of[e.Segment] == nil {
			segments = append(segments, e.Segment)
		}
		of[e.Segment] = append(of[e.Segment], e)
	}
	for _, segment := range segments {
		list = append(list, mergeInSegment(of[segment], max(1, mostOfOneLook/len(segments)))...)
	}
	return list
}

func mergeInSegment(events []api.Event, most int) []api.Event {
	if len(events) <= most {
		return events
	}
	var order []alike
	of := map[alike][]api.Event{}
	for _, e := range events {
		key := alike{e.Kind, e.Segment, e.Service, e.State}
		if of[key] == nil {
			order = append(order, key)
		}
		of[key] = append(of[key], e)
	}
	var list []api.Event
	for i, key := range order {
		if left := order[i:]; len(list) == most-1 && len(left) > 1 {
			return append(list, mergeServices(left, of))
		}
		list = append(list, mergeAlike(key, of[key]))
	}
	return list
}

// mergeAlike makes one event of many.
func mergeAlike(key alike, events []api.Event) api.Event {
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
	return api.Event{Kind: key.kind, Service: key.service, Segment: key.segment, State: key.state, Backends: len(events),
		Text: fmt.Sprintf("%d backends of service %s %s: %s", len(events), key.service, is, model.Some(names))}
}

// mergeServices is one event for all that have no room.
func mergeServices(left []alike, of map[alike][]api.Event) api.Event {
	e := api.Event{Kind: api.EventHealth, Segment: left[0].segment}
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
