package api

import (
	"context"
	"sync"
	"time"
)

// How many large answers are made, or read by clients, at the same time: of all clients, and of
// one. A client that does not read its answer keeps its place until the write times out.
const (
	largeAnswers   = 4
	largeOfOneName = 2
)

// large are the large answers that are under way.
type large struct {
	wait time.Duration // for a place

	mu   sync.Mutex
	all  int
	of   map[string]int // by the client's name
	left chan struct{}  // is closed when one ends
}

func newLarge() *large {
	return &large{wait: turnWait, of: map[string]int{}, left: make(chan struct{})}
}

// begin waits for a place, and returns a function that gives it back; an error is a Problem, or the
// context's.
func (l *large) begin(ctx context.Context, name string) (end func(), err error) {
	over := time.NewTimer(l.wait)
	defer over.Stop()
	for {
		l.mu.Lock()
		free, next := l.all < largeAnswers && l.of[name] < largeOfOneName, l.left
		if free {
			l.all++
			l.of[name]++
		}
		l.mu.Unlock()
		if free {
			return func() { l.end(name) }, nil
		}
		select {
		case <-next:
		case <-over.C:
			return nil, busy("other large answers are being made or read: ask again")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *large) end(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[name]--; l.of[name] == 0 {
		delete(l.of, name)
	}
	close(l.left)
	l.left = make(chan struct{})
}
