package bfd

import (
	"context"
	"maps"
	"sync"
	"time"
)

// Forwarding is what happens to packets that come in by an interface.
type Forwarding uint8

// The states of an interface.
const (
	LinkDown Forwarding = iota // nothing comes in
	Detached                   // packets come in, and no program of weir's sees them
	Forwards
)

// Datapath is the datapath that a speaker stands for.
type Datapath interface {
	// Interface returns the state of an interface.
	Interface(name string) Forwarding
	// Changed returns a channel that has an element when a state may have changed. It may miss
	// changes.
	Changed() <-chan struct{}
}

// look is how often the datapath is looked at: there is no notice of a program that is
// taken off an interface.
const look = 50 * time.Millisecond

// watcher looks at the interfaces of all sessions. It may have to wait in the kernel (for the lock
// of all network configuration), so it is not the goroutine that speaks.
type watcher struct {
	datapath Datapath

	mu    sync.Mutex
	names []string
	does  map[string]Forwarding // the states that it told last
}

// follow sets the interfaces to look at, and tells their states. Nothing newer is told before it
// has returned.
func (w *watcher) follow(names []string, tell func(map[string]Forwarding) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names = names
	w.does = w.see()
	return tell(w.does)
}

func (w *watcher) see() map[string]Forwarding {
	does := make(map[string]Forwarding, len(w.names))
	for _, name := range w.names {
		does[name] = w.datapath.Interface(name)
	}
	return does
}

// check looks, and tells when a state has changed.
func (w *watcher) check(tell func(map[string]Forwarding)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if does := w.see(); !maps.Equal(does, w.does) {
		w.does = does
		tell(does)
	}
}

// run looks until the context ends.
func (w *watcher) run(ctx context.Context, tell func(map[string]Forwarding)) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-w.datapath.Changed():
		}
		w.check(tell)
	}
}
