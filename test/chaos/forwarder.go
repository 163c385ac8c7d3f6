package main

import (
	"context"
	"sync"
	"time"

	"weir.io/weir/test/chaos/schedule"
)

// forwarder is what runs on the directors: weir, or a rival of it.
type forwarder interface {
	// start makes a director forward by the current configuration. From then on it is told of
	// changes.
	start(ctx context.Context, i int, v schedule.Version) error
	// stop ends a director and clears what it has in memory.
	stop(ctx context.Context, i int, killed bool) error
	// again ends a director's process, and starts it again, perhaps as another version.
	again(ctx context.Context, i int, v schedule.Version, killed bool) error
	// agentAgain does it with a backend's agent.
	agentAgain(ctx context.Context, i int, v schedule.Version) error
	// clientAgain does it with the client's agent.
	clientAgain(ctx context.Context, v schedule.Version) error
	// apply tells every running director the new state.
	apply(ctx context.Context, now schedule.Group) error
	// note remembers a new state that the directors are not told.
	note(now schedule.Group)
	current() schedule.Group
	configurations() []configuration
	// ended returns an error if a process is gone that the run did not end.
	ended() error
}

// configuration is a configuration of the services, and when the directors were told.
type configuration struct {
	at    time.Time
	group schedule.Group
}

// told is what directors have been told.
type told struct {
	mu      sync.Mutex
	now     schedule.Group
	history []configuration
}

func newTold(first schedule.Group) told {
	return told{now: first, history: []configuration{{time.Now(), first}}}
}

func (t *told) note(now schedule.Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = now
}

func (t *told) current() schedule.Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

func (t *told) configurations() []configuration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.history
}
