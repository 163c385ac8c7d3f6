// Package retry has the pauses between attempts.
package retry

import (
	"context"
	"time"
)

// Backoff is how long to pause between failed attempts: first the shortest pause, then twice the one
// before, up to the longest.
type Backoff struct {
	First, Last time.Duration
	pause       time.Duration
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.pause = min(max(2*b.pause, b.First), b.Last)
	return b.pause
}

// Reset makes the next pause the shortest, after an attempt that has not failed.
func (b *Backoff) Reset() { b.pause = 0 }

// Sleep pauses, no longer than until the context ends.
func Sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
