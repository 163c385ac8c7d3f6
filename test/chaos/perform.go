package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/test/chaos/schedule"
	"weir.io/weir/test/chaos/traffic"
)

// performed is an event that has happened.
type performed struct {
	schedule.Event
	effect time.Time // when packets or directors were first told
}

// performer makes the events happen. Slow work of a director's process runs beside the following
// events, in order for each director.
type performer struct {
	mode    mode
	top     *topology
	group   forwarder
	store   *sharedStore // nil: the directors share no store
	servers []*traffic.Server
	tracker *traffic.Tracker
	answers *checkServers // to health checks; nil: there are none
	done    []performed
	say     func(format string, args ...any)
	tasks   []*task // the latest of each director, then of each backend's agent, and of the client's
}

// agentTask is the index of a backend's agent in tasks.
func (p *performer) agentTask(backend int) int { return len(p.top.directors) + backend }

// clientTask is the index of the client's agent in tasks.
func (p *performer) clientTask() int { return p.agentTask(len(p.top.backends)) }

func newPerformer(h *harness, servers []*traffic.Server) *performer {
	p := &performer{mode: h.mode, top: h.top, group: h.group, store: h.store, servers: servers, tracker: h.tracker, answers: h.answers, say: h.say}
	for range p.clientTask() + 1 {
		p.tasks = append(p.tasks, finishedTask())
	}
	return p
}

// How long a network takes to find out by BFD that a neighbor is gone (three packets, 50 ms apart),
// and to stop sending to a director that has withdrawn its routes.
const (
	failover = 200 * time.Millisecond
	inFlight = 100 * time.Millisecond
)

// lead is how long before its time a director is started: it is announced when it
// forwards.
const lead = 5 * time.Second

// step is an event, or the preparation of one.
type step struct {
	at      time.Duration
	prepare bool
	schedule.Event
}

// steps are the events with their preparations. No preparation comes before the director's previous
// event, which may be its removal.
func steps(events []schedule.Event) []step {
	var list []step
	free := map[int]time.Duration{}
	for _, e := range events {
		if e.Kind == schedule.DirectorAdded {
			list = append(list, step{max(e.At-lead, free[e.Director]), true, e})
		}
		if e.OfOneDirector() {
			free[e.Director] = e.At
		}
		list = append(list, step{e.At, false, e})
	}
	slices.SortStableFunc(list, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return list
}

// run performs the events at their times; a late one happens at once.
func (p *performer) run(ctx context.Context, begin time.Time, events []schedule.Event) error {
	for _, s := range steps(events) {
		if !sleep(ctx, time.Until(begin.Add(s.at))) {
			return ctx.Err()
		}
		if s.prepare {
			p.beside(ctx, s.Director, func(ctx context.Context) error { return p.bringUp(ctx, s.Event) })
			continue
		}
		if !p.happens(s.Kind) {
			continue
		}
		effect, err := p.perform(ctx, s.Event)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Event, err)
		}
		p.done = append(p.done, performed{s.Event, effect})
		p.say("%6.1fs %s", effect.Sub(begin).Seconds(), s.Event)
		if err := errors.Join(p.failed(), p.group.ended()); err != nil {
			return err
		}
	}
	for _, t := range p.tasks {
		if err := t.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// happens reports whether the run has what a kind of event is about. A rival without processes has
// no other versions, for example.
func (p *performer) happens(k schedule.Kind) bool {
	switch k {
	case schedule.StoreMemberLost, schedule.StoreMemberBack:
		return p.store != nil
	case schedule.DirectorUpgraded:
		return !p.mode.dnat
	case schedule.AgentUpgraded:
		return p.mode.agent
	}
	return true
}

// perform makes an event happen and returns when it took effect.
func (p *performer) perform(ctx context.Context, e schedule.Event) (effect time.Time, err error) {
	if e.Kind == schedule.DirectorAdded {
		err = p.tasks[e.Director].wait(ctx)
	}
	effect = time.Now()
	if err != nil {
		return effect, err
	}
	switch e.Kind {
	case schedule.DirectorAdded:
		return effect, p.top.announce(e.After.Announced)
	case schedule.DirectorRemoved:
		if err := p.top.announce(e.After.Announced); err != nil {
			return effect, err
		}
		p.beside(ctx, e.Director, func(ctx context.Context) error {
			sleep(ctx, inFlight)
			return p.group.stop(ctx, e.Director, false)
		})
	case schedule.DirectorKilled:
		return effect, p.killDirector(ctx, e)
	case schedule.DirectorCrashed, schedule.DirectorRestarted, schedule.DirectorUpgraded:
		p.beside(ctx, e.Director, func(ctx context.Context) error {
			return p.group.again(ctx, e.Director, e.After.DirectorVersions[e.Director], e.Kind == schedule.DirectorCrashed)
		})
	case schedule.AgentUpgraded:
		i := e.Backends[0]
		p.beside(ctx, p.agentTask(i), func(ctx context.Context) error { return p.group.agentAgain(ctx, i, e.After.AgentVersions[i]) })
		if p.mode.redirects {
			p.beside(ctx, p.clientTask(), func(ctx context.Context) error { return p.group.clientAgain(ctx, e.After.AgentVersions[i]) })
		}
	case schedule.DirectorBlind, schedule.DirectorSees:
		return effect, p.top.blind(ctx, e.Director, e.Backends[0], e.Kind == schedule.DirectorBlind)
	case schedule.StoreMemberLost, schedule.StoreMemberBack:
		return effect, p.changeStore(e)
	case schedule.TierFailed, schedule.TierBack:
		p.group.note(e.After)
		return effect, p.answers.fail(e.Kind == schedule.TierFailed)
	case schedule.QueuesChanged:
		return effect, p.top.setQueues(ctx, e.After.Queues)
	case schedule.BackendsKilled:
		return effect, p.killBackends(e)
	default:
		return effect, p.change(ctx, e)
	}
	return effect, nil
}

// bringUp makes a director forward before the router sends to it.
func (p *performer) bringUp(ctx context.Context, e schedule.Event) error {
	if err := p.top.setDirector(e.Director, true); err != nil {
		return err
	}
	return p.group.start(ctx, e.Director, e.After.DirectorVersions[e.Director])
}

func (p *performer) changeStore(e schedule.Event) error {
	if e.Kind == schedule.StoreMemberBack {
		return p.store.start(e.Member)
	}
	return p.store.kill(e.Member)
}

// killDirector kills a director's host: its cables go dead, the router finds out, and nothing that
// it had in memory comes back.
func (p *performer) killDirector(ctx context.Context, e schedule.Event) error {
	// The director may still be starting, and would wait in vain for hosts that it can no longer
	// reach.
	p.tasks[e.Director].abandon()
	if err := p.top.setDirector(e.Director, false); err != nil {
		return err
	}
	sleep(ctx, failover)
	p.beside(ctx, e.Director, func(ctx context.Context) error { return p.group.stop(ctx, e.Director, true) })
	return p.top.announce(e.After.Announced)
}

// killBackends kills backends' hosts: no packet tells of their connections' end.
func (p *performer) killBackends(e schedule.Event) error {
	for _, i := range e.Backends {
		p.tracker.Died(i)
		if err := p.top.setBackend(i, false); err != nil {
			return err
		}
		p.servers[i].Reset()
	}
	p.group.note(e.After)
	return nil
}

// change tells the directors of other backends, weights or another ring size. New backends' hosts
// are up before; those of removed backends end with the change.
func (p *performer) change(ctx context.Context, e schedule.Event) error {
	before := p.group.current()
	var gone []int
	for i, b := range e.After.Backends {
		switch was := before.Backends[i].State; {
		case was == schedule.Absent && b.State != schedule.Absent:
			if err := p.top.setBackend(i, true); err != nil {
				return err
			}
			p.tracker.Returned(i)
		case was != schedule.Absent && b.State == schedule.Absent:
			p.leave(i)
			gone = append(gone, i)
		}
	}
	if err := p.group.apply(ctx, e.After); err != nil {
		return err
	}
	for _, i := range gone {
		p.resetRemoved(i)
	}
	return nil
}

// leave notes that a backend is removed, and with it the connections through directors.
func (p *performer) leave(backend int) {
	if p.mode.redirects {
		p.tracker.Removed(backend)
		return
	}
	p.tracker.Died(backend)
}

// resetRemoved ends the connections that end with a backend's removal.
func (p *performer) resetRemoved(backend int) {
	if p.mode.redirects {
		p.servers[backend].ResetRelayed(netip.MustParseAddr(vip))
		return
	}
	p.servers[backend].Reset()
}

// count counts the events of a kind.
func (p *performer) count(k schedule.Kind) (n int) {
	for _, d := range p.done {
		if d.Kind == k {
			n++
		}
	}
	return n
}

// doubles counts the directors' changes with a backends' change within a second, each paired with
// another one.
func (p *performer) doubles() int {
	used, n := map[int]bool{}, 0
	for _, d := range p.done {
		if !d.Kind.OfDirectors() {
			continue
		}
		for i, b := range p.done {
			if b.Kind.OfBackends() && !used[i] && b.effect.Sub(d.effect).Abs() < time.Second {
				used[i] = true
				n++
				break
			}
		}
	}
	return n
}

// sleep reports whether the time has passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
