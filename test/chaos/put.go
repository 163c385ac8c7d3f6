package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/process"
	"weir.io/weir/test/chaos/schedule"
)

// owner is the owner of the services' set in the store.
const owner = "chaos"

// putPatience is how long a change may wait for a director that accepts it, and for the store to
// have a leader.
const putPatience = 20 * time.Second

var errNobodyRuns = errors.New("no director runs")

// seed gives the store its first set, through the first director.
func (g *group) seed(ctx context.Context) error {
	if g.store == nil || g.seeded {
		return nil
	}
	g.seeded = true
	return g.put(ctx, g.current())
}

// tryPatience is how long one director may take: its host may be gone.
const tryPatience = 5 * time.Second

func putBy(ctx context.Context, w *process.Weir, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	_, err := api.NewClient(w.Socket).PutSet(ctx, owner, api.SetText{Text: text}, api.Condition{})
	return err
}

// put writes the services to the store through the first director that accepts them. A director
// that is being ended does not; if all are, the next one to run does. The same set twice changes
// nothing, so a lost answer does no harm.
func (g *group) put(ctx context.Context, now schedule.Group) error {
	c := model.Config{Services: g.services(now)}
	c.SetDefaults()
	text, err := config.Marshal(struct {
		Services []model.Service `json:"services"`
	}{c.Services})
	if err != nil {
		return fmt.Errorf("write set: %w", err)
	}
	last := errNobodyRuns
	for deadline := time.Now().Add(putPatience); time.Now().Before(deadline) && ctx.Err() == nil; sleep(ctx, pollPause) {
		for _, w := range g.runs() {
			if last = putBy(ctx, w, text); last == nil {
				return nil
			}
		}
	}
	return fmt.Errorf("apply set: %w", last)
}
