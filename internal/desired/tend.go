package desired

import (
	"context"
	"time"

	"weir.io/weir/internal/history"
)

// leastPause is how long the keeper waits at least before it looks again for
// generations to take out of the logs: those of many services leave together. After an
// error it waits longer each time, to the longest.
const (
	leastPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// Run takes generations out of the logs in time, and what waits for room or for a store
// in, until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	pause := leastPause
	for ctx.Err() == nil {
		var next <-chan time.Time
		if due := k.due(); !due.IsZero() {
			next = time.After(max(time.Until(due), pause))
		}
		select {
		case <-ctx.Done():
		case <-k.moved:
		case <-next:
			if err := k.tend(); err != nil {
				k.log.Error("desired state is not what is stored", "error", err, "retry-in", pause)
				pause = min(2*pause, lastPause)
				continue
			}
			pause = leastPause
		}
	}
}

// due returns when tend has something to do next, or the zero time.
func (k *Keeper) due() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unstored != nil {
		return time.Now()
	}
	var first time.Time
	for _, d := range k.state.Documents() {
		due := history.Due(d.Log, &d.Service, nil)
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	return first
}

// tend does what is due.
func (k *Keeper) tend() error {
	k.mu.Lock()
	file := k.unstored
	k.mu.Unlock()
	if file != nil {
		_, err := k.setFile(*file)
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	after, err := k.update(k.local, k.trim())
	if err != nil || after.Revision == k.state.Revision {
		return err
	}
	k.state = after
	return k.apply()
}
