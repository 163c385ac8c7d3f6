package utilization

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A watch answers for the last window, or less than it in the beginning: long enough
// that a moment's burst is not taken for load, and shorter than the usual interval
// between two scrapes.
const (
	window   = 10 * time.Second
	interval = time.Second
)

// Watch knows the utilization of the last ten seconds at any time.
type Watch struct {
	read func() (Reading, error)

	mu   sync.Mutex
	past []Reading // of the last window, oldest first
}

// NewWatch begins to watch what a meter counts.
func NewWatch(m *Meter) (*Watch, error) {
	return newWatch(m.Read)
}

func newWatch(read func() (Reading, error)) (*Watch, error) {
	first, err := read()
	if err != nil {
		return nil, err
	}
	return &Watch{read: read, past: []Reading{first}}, nil
}

// Run keeps the window moving until the context ends.
func (w *Watch) Run(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r, err := w.read()
			if err != nil {
				log.Warn("utilization not read", "error", err)
				continue
			}
			w.note(r)
		}
	}
}

// note adds a reading. The oldest of those that stay begins the window.
func (w *Watch) note(r Reading) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.past = append(w.past, r)
	for len(w.past) > 1 && r.at.Sub(w.past[1].at) >= window {
		w.past = w.past[1:]
	}
}

// CPUs returns the work of each CPU in the window that ends now.
func (w *Watch) CPUs() ([]CPU, error) {
	now, err := w.read()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return Between(w.past[0], now), nil
}
