package edge

import (
	"context"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/lab/process"
)

// quiet is how long nothing must come until traffic counts as ended. longQuiet is the same if each
// director finds out by itself.
const (
	quiet     = 250 * time.Millisecond
	longQuiet = 600 * time.Millisecond
)

// Delay is how long after a change all had followed it.
type Delay struct {
	Route   time.Duration // the router's kernel; 0: it had nothing to follow
	Traffic time.Duration // new connections
}

// Stop ends a director as an operator does: it withdraws its routes, goes on for a while, and
// detaches.
func (e *Edge) Stop(ctx context.Context, d *Director) (delay Delay, err error) {
	began := time.Now()
	if err := d.tellToEnd(); err != nil {
		return delay, err
	}
	routed, err := e.routed(ctx)
	if err != nil {
		return delay, err
	}
	delay = Delay{Route: routed.Sub(began)}
	delay.Traffic, err = e.leaves(ctx, began, func(a arrival) bool { return a.director == d })
	if err != nil {
		return delay, err
	}
	return delay, d.weir.Gone(ctx)
}

// End is Stop without measuring delays.
func (e *Edge) End(ctx context.Context, d *Director) error {
	if err := d.tellToEnd(); err != nil {
		return err
	}
	return d.weir.Gone(ctx)
}

// leaves waits until no arrival of a kind has come for a while, and returns how long after the
// beginning the last one came.
func (e *Edge) leaves(ctx context.Context, began time.Time, of func(arrival) bool) (time.Duration, error) {
	return silence(ctx, "traffic to leave", began, quiet, func() time.Time { return e.seen.lastBegun(began, of) })
}

// silence waits until the last event of a kind is that long ago, and returns how long after the
// beginning that event was.
func silence(ctx context.Context, what string, began time.Time, long time.Duration, last func() time.Time) (time.Duration, error) {
	at := began
	err := until(ctx, what, func() bool {
		if now := last(); now.After(at) {
			at = now
		}
		return time.Since(at) > long
	})
	return at.Sub(began), err
}

// comes waits for the first arrival of a kind.
func (e *Edge) comes(ctx context.Context, began time.Time, of func(arrival) bool) (took time.Duration, err error) {
	return took, until(ctx, "traffic to come", func() bool {
		at := e.seen.firstBegun(began, of)
		took = at.Sub(began)
		return !at.IsZero()
	})
}

// Start starts a director that does not run. The delay is from the moment when its datapath
// forwards; start is how long it took until then: starting the process, loading the program, the
// first checks of the backends.
func (e *Edge) Start(ctx context.Context, d *Director) (delay Delay, start time.Duration, err error) {
	launched := time.Now()
	if err := d.launch(); err != nil {
		return delay, 0, err
	}
	if err := d.weir.Runs(ctx); err != nil {
		return delay, 0, err
	}
	began, err := d.weir.RunsSince()
	if err != nil {
		return delay, 0, err
	}
	routed, err := e.routed(ctx)
	if err != nil {
		return delay, 0, err
	}
	delay.Route = max(routed.Sub(began), 0)
	delay.Traffic, err = e.comes(ctx, began, func(a arrival) bool { return a.director == d })
	return delay, began.Sub(launched), err
}

// Begin starts a director that does not run, whether traffic comes to it or not.
func (e *Edge) Begin(ctx context.Context, d *Director) error {
	if err := d.launch(); err != nil {
		return err
	}
	return d.weir.Runs(ctx)
}

// Remove takes a backend out of the services of all directors, as an operator does: it drains
// first. The delay is until nothing new comes to it.
func (e *Edge) Remove(ctx context.Context, b *Backend) (delay Delay, err error) {
	b.Active, b.drains = false, true
	began := time.Now()
	if err := e.Apply(ctx); err != nil {
		return delay, err
	}
	delay.Traffic, err = e.leaves(ctx, began, func(a arrival) bool { return a.backend == b })
	if err != nil {
		return delay, err
	}
	b.drains = false
	return delay, e.Apply(ctx)
}

// Add puts a backend into the services of all directors: traffic has followed when it has
// come to it by all of them.
func (e *Edge) Add(ctx context.Context, b *Backend) (delay Delay, err error) {
	b.Active = true
	began := time.Now()
	if err := e.Apply(ctx); err != nil {
		return delay, err
	}
	delay.Traffic, err = e.comesByAll(ctx, began, b)
	return delay, err
}

// comesByAll waits until every director has sent a backend a new connection.
func (e *Edge) comesByAll(ctx context.Context, began time.Time, b *Backend) (longest time.Duration, err error) {
	for _, d := range e.Directors {
		if !d.Running {
			continue
		}
		took, err := e.comes(ctx, began, func(a arrival) bool { return a.backend == b && a.director == d })
		if err != nil {
			return 0, err
		}
		longest = max(longest, took)
	}
	return longest, nil
}

// Lose takes a director's host away without warning, and waits until nothing is sent there any
// more. Restore brings it back.
func (e *Edge) Lose(ctx context.Context, d *Director, r *Requests) (delay Delay, err error) {
	d.Running = false
	began := time.Now()
	if err := d.port.SetUp(false); err != nil {
		return delay, err
	}
	routed, err := e.routed(ctx)
	if err != nil {
		return delay, err
	}
	delay.Route = routed.Sub(began)
	delay.Traffic, err = r.hits(ctx, began)
	return delay, err
}

// hits waits until no request meets a loss any more, and returns how long after the beginning the
// last such request began.
func (r *Requests) hits(ctx context.Context, began time.Time) (time.Duration, error) {
	end, last := time.Now().Add(quiet), began
	err := until(ctx, "requests to be answered", func() bool {
		at, known := r.lastHit(began, end)
		if at.After(last) {
			last, end = at, at.Add(quiet)
		}
		return known && time.Now().After(end)
	})
	return last.Sub(began), err
}

// Die takes a backend's host away without warning, and returns how long after that a director last
// sent it a client's packet. Revive brings it back.
func (e *Edge) Die(ctx context.Context, b *Backend) (time.Duration, error) {
	began := time.Now()
	if err := b.port.SetUp(false); err != nil {
		return 0, err
	}
	return silence(ctx, "directors to leave "+b.Name, began, longQuiet, func() time.Time { return e.seen.lastSent(b) })
}

// Revive brings a dead backend back, and waits until all directors send it new connections.
func (e *Edge) Revive(ctx context.Context, b *Backend) error {
	began := time.Now()
	if err := b.port.SetUp(true); err != nil {
		return err
	}
	b.host.Route("default", address(routerNumber).String()) // the kernel has dropped it with the link
	_, err := e.comesByAll(ctx, began, b)
	return err
}

// Restore brings a lost host back, and waits until the router uses it.
func (e *Edge) Restore(ctx context.Context, d *Director) error {
	if err := d.port.SetUp(true); err != nil {
		return err
	}
	d.host.Route("default", address(routerNumber).String()) // the kernel has dropped it with the link
	d.Running = true
	return e.Settled(ctx)
}

// Kill kills a director's process, and starts it again after a while.
func (e *Edge) Kill(ctx context.Context, d *Director, pause time.Duration) error {
	if err := d.weir.Kill(); err != nil {
		return err
	}
	if err := process.Sleep(ctx, pause); err != nil { // meanwhile the datapath is alone
		return err
	}
	if err := e.Begin(ctx, d); err != nil {
		return err
	}
	return e.Settled(ctx)
}

// UseBFD switches BFD on or off at all directors.
func (e *Edge) UseBFD(ctx context.Context, use bool) error {
	for _, d := range e.Directors {
		d.bfd = use
		if err := d.weir.Write(d.config()); err != nil {
			return err
		}
		if err := until(ctx, d.Name+" to read its file", func() bool {
			status, err := api.NewClient(d.weir.Socket).BGP(ctx)
			return err == nil && len(status.Neighbors) == 1 && (status.Neighbors[0].BFD != "") == use
		}); err != nil {
			return err
		}
	}
	return e.Settled(ctx)
}
