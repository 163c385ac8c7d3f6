package engine

import (
	"context"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// healthSettle is how long changes of health are collected before they are applied: all backends of
// a rack that is cut off fall within moments.
const healthSettle = 10 * time.Millisecond

// firstResults is how long the very first plan waits for the first results of its checks, and a new VIP
// for those of its own if a check may last longer. What an
// earlier process has pinned goes on meanwhile; a plan with backends that are down would break
// connections that the earlier process had sent to others.
const firstResults = 2 * time.Second

// checker is a Checker, or none.
type checker struct {
	Checker
	begun     bool
	awaited   time.Time             // until when the first announcement waits for results at most
	inherited map[model.Target]bool // until the sinks have taken something
}

// changed is never sent to when there is no checker.
func (c *checker) changed() <-chan struct{} {
	if c.Checker == nil {
		return nil
	}
	return c.Changed()
}

func (c *checker) health() Health {
	if c.Checker == nil {
		return nil
	}
	return c.States()
}

// follow makes the checks of the wanted plan, and goes on with those of the plan that runs: that
// may run for long if no sink takes the wanted one.
func (c *checker) follow(ctx context.Context, wanted, applied *request) {
	if c.Checker == nil {
		return
	}
	serving := servingIn(&applied.desired)
	if applied.result == nil {
		serving = func(t model.Target) bool { return c.inherited[t] }
	}
	checks := Checks(&wanted.desired, serving)
	has := make(map[model.Target]bool, len(checks))
	for i := range checks {
		has[checks[i].Target] = true
	}
	for _, check := range Checks(&applied.desired, serving) {
		if !has[check.Target] {
			checks = append(checks, check)
		}
	}
	c.Set(checks)
	if !c.begun {
		c.begun, c.awaited = true, time.Now().Add(firstResults+waysPatience)
		c.await(ctx)
	}
}

// only makes only the checks of the plan that runs.
func (c *checker) only(applied *request) {
	if c.Checker != nil {
		c.Set(Checks(&applied.desired, servingIn(&applied.desired)))
	}
}

// await returns when something is known about every backend, including whether connections can be
// handed over to it, or when enough time has passed.
func (c *checker) await(ctx context.Context) {
	late := time.NewTimer(firstResults)
	defer late.Stop()
	for c.awaits() {
		select {
		case <-c.Changed():
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (c *checker) awaits() bool {
	for _, state := range c.States() {
		if state == model.HealthUnknown {
			return true
		}
	}
	return false
}

// servingIn says which backends may have connections by a configuration that runs. There may be a
// million: it goes through them only when it is asked.
func servingIn(c *model.Config) func(model.Target) bool {
	has := sync.OnceValue(func() map[model.Target]bool {
		has := map[model.Target]bool{}
		for i := range c.Services {
			s := &c.Services[i]
			for j := range s.Backends {
				if s.Backends[j].State != model.Down {
					has[model.Target{Service: s.ID(), Backend: s.Backends[j].Endpoint()}] = true
				}
			}
		}
		return has
	})
	return func(t model.Target) bool { return has()[t] }
}

// turn applies changes of health. Even if no sink takes the wanted plan, the plan that runs must
// avoid backends that are down.
func (e *Engine) turn(wanted request) error {
	if e.applied.result == nil {
		return nil // the first Apply is still to come
	}
	err := e.set(wanted)
	if err == nil || wanted.result == e.applied.result {
		return err
	}
	if again := e.set(e.applied); again != nil {
		e.log.Error("changes of health are not followed", "error", again)
	}
	return err
}

// noteTiers says when another tier of a service begins to get new connections.
func (e *Engine) noteTiers(report *Report) {
	before := map[model.ServiceID]uint8{}
	for _, s := range e.Report().Services {
		if s.Tiers != nil {
			before[s.ID] = s.Tier
		}
	}
	for i := range report.Services {
		if s := &report.Services[i]; s.Tiers != nil && s.Tier != before[s.ID] {
			e.log.Warn("another tier gets new connections", "service", s.Name, "tier", s.Tier, "before", before[s.ID], "why", s.Tiers.Why())
		}
	}
}

// noteHealth says when a service begins or ends to use backends that are not healthy.
func (e *Engine) noteHealth(report *Report) {
	panicked := map[model.ServiceID]bool{}
	for _, s := range e.Report().Services {
		if s.Health != nil && s.Health.Panic {
			panicked[s.ID] = true
		}
	}
	for i := range report.Services {
		s := &report.Services[i]
		if s.Health == nil || s.Health.Panic == panicked[s.ID] {
			continue
		}
		if s.Health.Panic {
			e.log.Error("too few backends are healthy: all that can be reached are used", "service", s.Name, "up", s.Health.Up, "down", s.Health.Down)
			continue
		}
		e.log.Info("enough backends are healthy again: only they are used", "service", s.Name, "up", s.Health.Up, "down", s.Health.Down)
	}
}
