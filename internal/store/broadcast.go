package store

import (
	"context"
	"sync"
)

// broadcast sends states to watchers. A slow watcher misses states, never the last.
type broadcast struct {
	mu       sync.Mutex
	channels map[chan State]bool
}

// add returns a channel that already has the first state. It is closed when the context ends.
func (b *broadcast) add(ctx context.Context, first State) <-chan State {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.channels == nil {
		b.channels = map[chan State]bool{}
	}
	c := make(chan State, 1)
	c <- first
	b.channels[c] = true
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.channels, c)
		close(c)
	})
	return c
}

// send replaces what a channel still holds: only this function fills it.
func (b *broadcast) send(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.channels {
		select {
		case <-c:
		default:
		}
		c <- s
	}
}
