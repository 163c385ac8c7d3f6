package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// Which directors and which backend are lost, counted from 0.
const (
	lostDirector  = 1
	killedProcess = 0
	lostBackend   = 2
)

// aftermath is how long traffic is watched after all is as it should be, and outage how long a
// director's process is gone.
const (
	aftermath = 500 * time.Millisecond
	outage    = time.Second
)

// Loss is what became of traffic when something was lost, or came back.
type Loss struct {
	Event string `json:"event"`
	// Router is how long it took until the routes of all VIPs had changed; zero: they should not
	// change.
	Router   model.Duration `json:"router-followed-after,omitzero"`
	Rerouted int            `json:"routes-changed,omitempty"` // how often, where they should not
	Flows    int            `json:"new-flows"`                // begun while traffic was watched
	Lost     int            `json:"new-flows-lost"`           // of these, not answered
	Noticed  model.Duration `json:"traffic-noticed"`          // until the last lost flow was begun
}

// note adds what became of traffic since an event to the report.
func (r *run) note(ctx context.Context, begin time.Time, loss Loss) {
	sleep(ctx, aftermath)
	if ctx.Err() != nil {
		return
	}
	var last time.Time
	loss.Flows, loss.Lost, last = r.flows.between(begin, time.Now())
	if loss.Lost > 0 {
		loss.Noticed = model.Duration(last.Sub(begin).Round(time.Millisecond))
	}
	r.losses = append(r.losses, loss)
	r.progress.say("%s: %s", loss.Event, loss.summary())
}

// summary says in one line what became of traffic.
func (l *Loss) summary() string {
	text := "no new flow noticed"
	if l.Lost > 0 {
		text = fmt.Sprintf("new flows noticed for %s, %d of %d were not answered", time.Duration(l.Noticed), l.Lost, l.Flows)
	}
	if l.Router > 0 {
		text = fmt.Sprintf("the router followed after %s, %s", time.Duration(l.Router), text)
	}
	return text
}

// until waits for a condition.
func until(ctx context.Context, what string, holds func() (bool, error)) error {
	for end := time.Now().Add(applyTime); ; {
		if ok, err := holds(); err != nil || ok {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited in vain for %s", what)
		}
		if !sleep(ctx, 2*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// loseDirector cuts a director off and kills all that runs on it, as a power cut does. No
// process says goodbye, and no port of the router goes down: BFD has to find it.
func (r *run) loseDirector(ctx context.Context) error {
	d := r.group.directors[lostDirector]
	begin := time.Now()
	if err := r.top.plug(d.host, false); err != nil {
		return err
	}
	if err := d.host.Kill(); err != nil {
		return err
	}
	<-d.ended
	err := until(ctx, "the router to turn away from "+d.host.Name, func() (bool, error) {
		vips, err := r.router.sendsTo(lostDirector)
		return vips == 0, err
	})
	if err != nil {
		return err
	}
	followed := time.Since(begin).Round(time.Millisecond)
	r.note(ctx, begin, Loss{Event: d.host.Name + " lost: its cables are cut, its processes killed (-9)", Router: model.Duration(followed)})
	return ctx.Err()
}

// returnDirector boots the director again: nothing is pinned any more.
func (r *run) returnDirector(ctx context.Context) error {
	d := r.group.directors[lostDirector]
	if err := d.detach(ctx); err != nil {
		return err
	}
	begin := time.Now()
	if err := r.top.plug(d.host, true); err != nil {
		return err
	}
	if err := d.start(); err != nil {
		return err
	}
	if err := r.settle(ctx, lostDirector); err != nil {
		return err
	}
	followed := time.Since(begin).Round(time.Millisecond)
	r.note(ctx, begin, Loss{Event: d.host.Name + " started anew", Router: model.Duration(followed)})
	return ctx.Err()
}

// settle waits until a director forwards, and the router knows it.
func (r *run) settle(ctx context.Context, director int) error {
	d := r.group.directors[director]
	if err := d.wait(ctx, "forward to the backends", func() error { return d.forwards(ctx, r.rows, r.stages[0].members) }); err != nil {
		return err
	}
	if r.router == nil {
		return nil
	}
	err := d.wait(ctx, "tell the router its VIPs", func() error { return d.announces(ctx, r.rows) })
	if err != nil {
		return err
	}
	return until(ctx, "the router to send packets to "+d.host.Name, func() (bool, error) {
		vips, err := r.router.sendsTo(director)
		return vips == len(r.rows), err
	})
}

// announces says what is missing in the session with the router.
func (d *daemon) announces(ctx context.Context, rows []*row) error {
	status, err := api.NewClient(d.socket).BGP(ctx)
	if err != nil {
		return err
	}
	for _, n := range status.Neighbors {
		if n.State != model.SessionEstablished || n.BFD != "up" {
			return fmt.Errorf("the session is %s, BFD is %s: %s", n.State, n.BFD, n.Problem)
		}
	}
	for _, r := range rows {
		told := func(route model.RouteStatus) bool { return route.Prefix.Addr() == r.vip && route.Neighbors > 0 }
		if !slices.ContainsFunc(status.Routes, told) {
			return fmt.Errorf("VIP %s is not announced", r.vip)
		}
	}
	return nil
}

// killProcess kills weir run on a director, and starts it again later: packets go on, and
// the router keeps its routes.
func (r *run) killProcess(ctx context.Context) error {
	d := r.group.directors[killedProcess]
	before := 0
	if r.router != nil {
		before = r.router.changes()
	}
	begin := time.Now()
	if err := d.kill(); err != nil {
		return err
	}
	if !sleep(ctx, outage) {
		return ctx.Err()
	}
	if err := d.start(); err != nil {
		return err
	}
	if err := r.settle(ctx, killedProcess); err != nil {
		return err
	}
	loss := Loss{Event: fmt.Sprintf("weir run on %s killed (-9), and started %s later", d.host.Name, outage)}
	if r.router != nil {
		loss.Rerouted = r.router.changes() - before
	}
	r.note(ctx, begin, loss)
	return ctx.Err()
}

// loseBackend cuts a backend's cable until all directors know, and plugs it in again for a user who
// looks around in the lab.
func (r *run) loseBackend(ctx context.Context, traffic *traffic) error {
	host := r.top.backends[lostBackend]
	begin, err := r.cut(traffic)
	if err != nil {
		return err
	}
	for _, d := range r.group.directors {
		if err := d.wait(ctx, "turn away from "+host.Name, func() error { return d.misses(ctx, lostBackend) }); err != nil {
			return err
		}
	}
	r.timeline.end()
	r.note(ctx, begin, Loss{Event: host.Name + " lost: its cable is cut"})
	if err := r.top.plug(host, true); err != nil {
		return err
	}
	return ctx.Err()
}

// cut takes the backend away at a moment when every connection has had an answer: if one has not,
// its client cannot tell whether it has ended with its backend.
func (r *run) cut(traffic *traffic) (time.Time, error) {
	traffic.opening.Lock()
	defer traffic.opening.Unlock()
	begin := r.timeline.start(len(r.stages) - 1)
	return begin, r.top.plug(r.top.backends[lostBackend], false)
}

// misses says which service still uses a backend for new connections.
func (d *daemon) misses(ctx context.Context, backend int) error {
	services, err := api.NewClient(d.socket).Services(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		for _, b := range s.Backends {
			if b.Name == (member{backend: backend}).name() && b.State.Alive() {
				return fmt.Errorf("service %s: %s is %s", s.Name, b.Name, b.State)
			}
		}
	}
	return nil
}
