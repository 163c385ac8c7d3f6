package desired

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Health is what this director's probes find out.
type Health interface {
	// Found returns what is known about every backend that is checked.
	Found() map[model.Target]model.Found
	// Watch returns a channel that is sent to when a state that Found returns has changed.
	Watch() <-chan struct{}
}

// watch looks again for what is due when a backend's health, or what most of the group's directors
// find about it, has changed, and tells them what this director finds.
func (c *Controller) watch(ctx context.Context) {
	var others <-chan struct{}
	if c.groupHealth != nil {
		others = c.groupHealth.views.Changed()
	}
	changed := c.health.Watch()
	c.wake()
	for {
		c.reportView()
		select {
		case <-changed:
			c.wake()
		case <-others:
			c.wake()
		case <-c.moved.watch:
		case <-ctx.Done():
			return
		}
	}
}

// finds returns the source of backends' health: for the group's services most of its directors, for
// others this director; nil: there is none.
func (c *Controller) finds(shared bool) func() map[model.Target]model.Found {
	switch {
	case !shared && c.health != nil:
		return c.health.Found
	case shared && c.groupHealth != nil:
		return c.groupHealth.Found
	}
	return nil
}

// foundBy returns what the source finds, if some service's shares depend on it.
func foundBy(found func() map[model.Target]model.Found, s store.State) map[model.Target]model.Found {
	if found == nil {
		return nil
	}
	for d := range s.All() {
		if d.Service.SharesChange() {
			return found()
		}
	}
	return nil
}

// knowledge is what determines the shares of backends at a time.
type knowledge struct {
	now   time.Time
	found map[model.Target]model.Found
	heard func(*model.Service) func(netip.AddrPort) model.Heard // nil: no agent reports
}

// knows returns what is known about backends now: those of the group's services, or of this
// director's own.
func (c *Controller) knows(s store.State, shared bool) knowledge {
	is := knowledge{now: time.Now(), found: foundBy(c.finds(shared), s)}
	if shared {
		is.heard = c.evidence.Heard
	}
	return is
}

// shares returns a log with the shares that follow its current ones, and when they change next if
// nothing new becomes known: the zero time is never.
func (is *knowledge) shares(log model.Log, s *model.Service) (model.Log, time.Time) {
	id := s.ID()
	found := func(b netip.AddrPort) model.Found { return is.found[model.Target{Service: id, Backend: b}] }
	heard := func(netip.AddrPort) model.Heard { return model.Heard{} }
	if is.heard != nil && s.Relieves() {
		heard = is.heard(s)
	}
	steps, next := history.Ramp(log, s, found, is.now)
	strained, again := history.Relieve(log, s, found, heard, is.now)
	log.Steps, log.Strained = steps, strained
	if next.IsZero() || !again.IsZero() && again.Before(next) {
		next = again
	}
	return log, next
}

// dueToStep returns when a backend gets another share, by what is known now, or the zero time.
func (is *knowledge) dueToStep(log model.Log, s *model.Service) time.Time {
	after, next := is.shares(log, s)
	if !sameShares(log, after) {
		return is.now
	}
	return next
}

func sameShares(a, b model.Log) bool { return sameSteps(a, b) && sameStrain(a, b) }

func sameSteps(a, b model.Log) bool {
	return slices.EqualFunc(a.Steps, b.Steps, func(a, b model.Step) bool {
		return a.Backend == b.Backend && a.Number == b.Number && a.Since.Equal(b.Since)
	})
}

func sameStrain(a, b model.Log) bool {
	return slices.EqualFunc(a.Strained, b.Strained, func(a, b model.Strain) bool {
		return a.Backend == b.Backend && a.Parts == b.Parts && a.Since.Equal(b.Since)
	})
}

// reshared is a service whose backends got other shares.
type reshared struct {
	service       string
	before, after model.Log
}

// starting returns "10.0.1.1:0 at 1/8, 10.0.1.2:0 at 3/8".
func (r *reshared) starting() string {
	var parts []string
	for _, s := range r.after.Steps {
		parts = append(parts, fmt.Sprintf("%s at %d/%d", s.Backend, s.Number, model.StartSteps))
	}
	return orNone(parts)
}

// strained returns "10.0.1.1:0 at 7/8".
func (r *reshared) strained() string {
	var parts []string
	for _, s := range r.after.Strained {
		parts = append(parts, fmt.Sprintf("%s at %d/%d", s.Backend, s.Parts, model.ShareParts))
	}
	return orNone(parts)
}

func orNone(parts []string) string {
	if len(parts) == 0 {
		return "none"
	}
	return model.Some(parts)
}

// reshare returns a log with the shares that follow its earlier ones.
func (l *logChange) reshare(log, before model.Log, s *model.Service) model.Log {
	after, _ := l.known.shares(before, s)
	if !sameShares(before, after) {
		l.reshared = append(l.reshared, reshared{s.Name, before, after})
	}
	log.Steps, log.Strained = after.Steps, after.Strained
	return log
}
