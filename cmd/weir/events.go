package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
)

// lookEvery is the time between two looks for changes that are not signaled.
const lookEvery = 500 * time.Millisecond

// watcher finds events by comparing the current state with the earlier one: so no other code has to
// know of it, and what comes and goes in between is no event.
type watcher struct {
	d        *director
	events   *api.Events
	state    store.State
	tags     map[string]string // of sets, by owner
	health   map[model.Target]model.HealthState
	changes  uint64 // of states that are in health
	sessions map[string]model.SessionState
}

func servicesText(count int) string {
	if count == 1 {
		return "1 service"
	}
	return fmt.Sprintf("%d services", count)
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

// watch begins with the current state, which is no event, unless it is a problem. It returns a
// function that goes on until its context ends. Every change after watch has returned is an event,
// so it is called before clients are answered.
func (d *director) watch(events *api.Events) (run func(context.Context)) {
	w := &watcher{d: d, events: events}
	w.look()
	return w.run
}

func (w *watcher) run(ctx context.Context) {
	d, events := w.d, w.events
	d.problems.Follow(func(changes []problems.Change) { events.Add(problemEvents(changes)...) })
	turned := d.checker.Watch()
	tick := time.NewTicker(lookEvery)
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
	w.d.gather()
	w.d.keepWhatRuns()
	return append(append(w.lookAtSets(), w.lookAtHealth()...), w.lookAtBGP()...)
}

// lookAtSets compares services only when the state is a new one: often only its logs have changed.
func (w *watcher) lookAtSets() (found []api.Event) {
	state := w.d.keeper.Sets()
	if w.tags != nil && state.Revision == w.state.Revision {
		return nil
	}
	first := w.tags == nil
	before := w.state.Sets
	tags := map[string]string{}
	for _, owner := range state.Owners() {
		set := state.Sets[owner]
		if old, had := before[owner]; had && sameDocuments(old, set) {
			tags[owner] = w.tags[owner]
			continue
		}
		if tags[owner] = set.Tag(); tags[owner] == w.tags[owner] || first {
			continue
		}
		event := api.Event{Kind: api.EventSet, Owner: owner, Revision: state.Revision, Text: fmt.Sprintf("owner %q has another set, of %s%s", owner, servicesText(len(set.Documents)), changesText(w.state, state, owner))}
		if owner == store.OwnerFile {
			event.Kind, event.Text = api.EventFile, fmt.Sprintf("the director's file has other services, %d%s", len(set.Documents), changesText(w.state, state, store.OwnerFile))
		}
		found = append(found, event)
	}
	w.state, w.tags = state, tags
	if len(found) > 0 {
		w.d.examiner.wake()
	}
	return found
}

// sameDocuments is true for a set and itself.
func sameDocuments(a, b store.Set) bool {
	return len(a.Documents) == len(b.Documents) && (len(a.Documents) == 0 || &a.Documents[0] == &b.Documents[0])
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
			found = append(found, redirectEvent(h, name))
			continue
		}
		event := api.Event{Kind: api.EventHealth, Service: name.service, Backend: name.backend, State: string(h.State),
			Text: fmt.Sprintf("backend %s of service %s is %s", name.backend, name.service, h.State)}
		if h.State == model.HealthDown && h.Reason != "" {
			event.Text += ": " + h.Reason + ": " + h.Detail
		}
		found = append(found, event)
	}
	return fewer(found)
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

func (d *director) targetNames(targets []model.Target) map[model.Target]targetName {
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
