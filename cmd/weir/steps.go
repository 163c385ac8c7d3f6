package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// rollbackTimeout is how long a return to the previous set may take, also after an interruption.
const rollbackTimeout = 30 * time.Second

// appliedStep is a part of a change.
type appliedStep struct {
	Step  int          `json:"step"`
	Moves []model.Move `json:"moves"`
	ETag  string       `json:"etag"` // of the set that the step made
}

// steps applies a set in equal parts, looks at the services after each, and returns to the earlier
// set when they get worse. It uses only the director's API, and overwrites nothing that another
// client has written meanwhile.
type steps struct {
	client  *api.Client
	request api.PlanRequest
	plan    *api.Plan
	count   int
	watch   watch
	say     func(format string, values ...any)
	// progress tells what the command waits for.
	progress *progress

	before  api.SetText // the earlier set
	tags    []string    // the set has one of them, unless another client has written it
	changed bool        // something may have been stored
}

// apply returns the steps that were made, the answer to the last one, and why the set is the
// previous one again, if it is.
func (s *steps) apply(ctx context.Context) (done []appliedStep, last api.SetChange, err error) {
	if err := s.remember(ctx); err != nil {
		return nil, last, err
	}
	if err := s.watch.start(ctx, s.client, s.plan); err != nil {
		return nil, last, fmt.Errorf("nothing is applied: %w", err)
	}
	for k := 1; k <= s.count; k++ {
		if last, err = s.step(ctx, k); err == nil {
			done = append(done, appliedStep{k, last.Moves, last.Tag})
			s.watch.revision = last.Revision
			s.say("step %d of %d: %s; looking for %v how it goes", k, s.count, movesText(last.Moves), s.watch.time)
			err = s.look(ctx)
		}
		if err != nil {
			return done, last, s.goBack(ctx, k, err)
		}
	}
	return done, last, nil
}

// remember notes the current set, to return to.
func (s *steps) remember(ctx context.Context) error {
	for i := range s.plan.Services {
		if p := &s.plan.Services[i]; p.KeysGo {
			return fmt.Errorf("nothing is applied: service %q has keys of quic that the change takes away, and what cannot be read cannot be put back: apply it without --steps and --watch", p.Service)
		}
	}
	s.before = api.SetText{JSON: true, Text: []byte(`{"services":[]}`)}
	if s.plan.Base == "" {
		return nil
	}
	set, err := s.client.Set(ctx, s.request.Owner)
	if err != nil {
		return err
	}
	if set.Tag != s.plan.Base {
		return fmt.Errorf("nothing is applied: somebody has changed the set since it was planned for; plan again")
	}
	s.tags = []string{set.Tag}
	s.before.Text, err = json.Marshal(set)
	return err
}

// step makes the next part of the change: of what is left, so that all parts are equal.
func (s *steps) step(ctx context.Context, k int) (change api.SetChange, err error) {
	text := s.request.SetText
	text.Part = 1 / float64(s.count-k+1)
	// If the answer is lost, the client has to know what it asked for.
	would, err := s.client.Plan(ctx, api.PlanRequest{Owner: s.request.Owner, SetText: text})
	if err != nil {
		return change, err
	}
	when := api.Condition{Tags: s.tags, None: len(s.tags) == 0}
	switch change, err = s.client.PutSet(ctx, s.request.Owner, text, when); {
	case err == nil:
		s.tags, s.changed = []string{change.Tag}, true
	case statusOf(err) != exitRefused:
		s.tags, s.changed = append(slices.Clone(s.tags), would.Tag), true
	}
	return change, err
}

// look looks at the services, and says on a terminal what it sees.
func (s *steps) look(ctx context.Context) error {
	var saw atomic.Value // string
	saw.Store("looking how it goes")
	s.watch.saw = func(text string) { saw.Store(text) }
	defer s.progress.start(func() string { return saw.Load().(string) })()
	return s.watch.look(ctx, s.client)
}

// goBack restores the earlier set, unless another client has written it.
func (s *steps) goBack(ctx context.Context, k int, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if !s.changed {
		return fmt.Errorf("nothing is applied: %w", why)
	}
	if _, err := s.client.PutSet(ctx, s.request.Owner, s.before, api.Condition{Tags: s.tags}); err != nil {
		return fmt.Errorf("at step %d of %d: %w; and the set cannot be made what it was: %w", k, s.count, why, err)
	}
	return fmt.Errorf("at step %d of %d: %w; the set is what it was before", k, s.count, why)
}

func movesText(moves []model.Move) string {
	if len(moves) == 0 {
		return "no slots of services that stay moved"
	}
	text := ""
	for i, m := range moves {
		if i == 3 {
			return text + fmt.Sprintf(" and of %d more services some", len(moves)-i)
		}
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s of the slots of %s", m.Share(), m.Service)
	}
	return text + " moved"
}
