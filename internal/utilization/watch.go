package utilization

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A watch covers the last window, or less in the beginning: long enough that a short burst is not
// taken for load, and shorter than the usual interval between two scrapes. Counting costs every
// poll some time, so only a tenth of each interval is counted, at a random moment: what happens
// once a second is seen as often as everything else.
const (
	window   = 10 * time.Second
	interval = time.Second
	sample   = interval / 10
)

// counter is a [Meter].
type counter interface {
	Start() error
	Stop() error
	Read() (Reading, error)
}

// Watch knows the utilization of the last ten seconds at any time.
type Watch struct {
	meter counter

	mu   sync.Mutex
	past []Reading // of the last window, oldest first
}

// NewWatch begins to watch with a meter that is counting.
func NewWatch(m *Meter) (*Watch, error) {
	return newWatch(m)
}

func newWatch(meter counter) (*Watch, error) {
	first, err := meter.Read()
	if err != nil {
		return nil, err
	}
	return &Watch{meter: meter, past: []Reading{first}}, nil
}

// Run keeps the window moving until the context ends. Its first sample begins now.
func (w *Watch) Run(ctx context.Context, log *slog.Logger) {
	for before := time.Duration(0); pause(ctx, before); before = rand.N(interval - sample) {
		if err := w.sample(ctx); err != nil {
			log.Warn("utilization not read", "error", err)
		}
		if !pause(ctx, interval-sample-before) {
			return
		}
	}
}

// sample counts for a while.
func (w *Watch) sample(ctx context.Context) error {
	if err := w.meter.Start(); err != nil {
		return err
	}
	pause(ctx, sample)
	if err := w.meter.Stop(); err != nil {
		return err
	}
	r, err := w.meter.Read()
	if err != nil {
		return err
	}
	w.note(r)
	return nil
}

// pause waits; false means that the context ended.
func pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(length):
		return true
	}
}

// note adds a reading. The oldest reading that stays begins the window.
func (w *Watch) note(r Reading) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.past = append(w.past, r)
	over := 0
	for over+1 < len(w.past) && r.at.Sub(w.past[over+1].at) >= window {
		over++
	}
	w.past = slices.Delete(w.past, 0, over) // not w.past[over:], which keeps all in memory
}

// CPUs returns the work of each CPU in the window that ends now.
func (w *Watch) CPUs() ([]CPU, error) {
	now, err := w.meter.Read()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return Between(w.past[0], now), nil
}
