package desired

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// Views are what the directors of a group have found, each with its own probes.
type Views interface {
	// Views returns what each director has found about each service, including this director.
	Views() []model.View
	// Changed is sent to when a view has changed.
	Changed() <-chan struct{}
	// Report replaces the views that the others read as this director's. It does not wait for
	// them.
	Report([]model.View)
}

// reportView reports to the others of the group what this director's probes find about services
// whose shares depend on it.
func (c *Controller) reportView() {
	if c.groupHealth == nil {
		return
	}
	found := c.health.Found()
	var views []model.View
	c.mu.Lock()
	defer c.mu.Unlock()
	for d := range c.shared.All() {
		if d.Service.SharesChange() {
			views = append(views, viewOf(&d.Service, found))
		}
	}
	c.groupHealth.views.Report(views)
}

// viewOf returns what has been found about a service.
func viewOf(s *model.Service, found map[model.Target]model.Found) model.View {
	v := model.View{ServiceID: s.ID()}
	for i := range s.Backends {
		switch b := s.Backends[i].Endpoint(); found[model.Target{Service: v.ServiceID, Backend: b}].State {
		case model.HealthUp:
			v.Up = append(v.Up, b)
		case model.HealthDown:
			v.Down = append(v.Down, b)
		}
	}
	slices.SortFunc(v.Up, netip.AddrPort.Compare)
	slices.SortFunc(v.Down, netip.AddrPort.Compare)
	return v
}

// groupHealth is what most directors of a group have found, among those that have found anything:
// nothing if they are evenly split.
type groupHealth struct {
	views Views

	mu   sync.Mutex
	seen map[model.Target]seen
}

// seen is what most directors have found, and since when this director knows it.
type seen struct {
	state model.HealthState
	since time.Time
}

// Found returns what most directors have found, and for how long this one has known it. The
// director that has known it longest writes the next step.
func (g *groupHealth) Found() map[model.Target]model.Found {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, last := time.Now(), g.seen
	g.seen = map[model.Target]seen{}
	found := map[model.Target]model.Found{}
	for target, state := range majority(g.views.Views()) {
		s, known := last[target]
		if !known || s.state != state {
			s = seen{state, now}
		}
		g.seen[target], found[target] = s, model.Found{State: state, For: now.Sub(s.since)}
	}
	return found
}

// majority returns what most of the views say about each backend.
func majority(views []model.View) map[model.Target]model.HealthState {
	balance := map[model.Target]int{}
	for i := range views {
		for _, b := range views[i].Up {
			balance[model.Target{Service: views[i].ServiceID, Backend: b}]++
		}
		for _, b := range views[i].Down {
			balance[model.Target{Service: views[i].ServiceID, Backend: b}]--
		}
	}
	states := make(map[model.Target]model.HealthState, len(balance))
	for target, n := range balance {
		switch {
		case n > 0:
			states[target] = model.HealthUp
		case n < 0:
			states[target] = model.HealthDown
		default:
			states[target] = model.HealthUnknown
		}
	}
	return states
}
