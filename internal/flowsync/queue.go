package flowsync

import (
	"sync"
	"sync/atomic"
)

// queueMost is how many bytes may wait for a slow director.
const queueMost = 8 << 20

// queue is what to tell one director. When it has become too long it is dropped, and the director
// is told everything again.
type queue struct {
	wake    chan struct{}  // is sent to when the queue has something
	dropped *atomic.Uint64 // how often it has become too long
	version version        // that the director understands

	mu       sync.Mutex
	tellings []telling
	bytes    int
	again    bool
}

func newQueue(dropped *atomic.Uint64, v version) *queue {
	return &queue{wake: make(chan struct{}, 1), dropped: dropped, version: v}
}

func (q *queue) add(tellings []telling) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.again {
		return // everything will be told anyway
	}
	for _, t := range tellings {
		q.bytes += len(t.frame)
	}
	q.tellings = append(q.tellings, tellings...)
	if q.bytes > queueMost {
		q.dropped.Add(1)
		q.restart()
	}
	q.ring()
}

// everything makes the queue tell the director everything again.
func (q *queue) everything() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.restart()
	q.ring()
}

func (q *queue) restart() { q.tellings, q.bytes, q.again = nil, 0, true }

func (q *queue) ring() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take empties the queue. What is added from now on comes after everything.
func (q *queue) take() (tellings []telling, everything bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	tellings, everything = q.tellings, q.again
	q.tellings, q.bytes, q.again = nil, 0, false
	return tellings, everything
}
