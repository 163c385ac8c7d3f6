package upkeep

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
)

// When a host is looked at: some time after a notice, because notices come in crowds, and regularly
// without one. The kernel does not tell of every change.
const (
	settle = 100 * time.Millisecond
	anyway = time.Second
)

// Keeper looks after the parts of one owner.
type Keeper struct {
	log    *slog.Logger
	tell   func(Event)
	forget atomic.Bool
	status atomic.Pointer[[]model.Upkeep]
	wake   chan struct{}

	mu      sync.Mutex // one look at a time
	now     func() time.Time
	parts   []Part
	ledgers []Ledger
}

// New makes a keeper of parts, in the order in which they are looked at. What happens is
// logged, and told to tell, from one goroutine at a time. Nothing is done before Look or Run.
func New(log *slog.Logger, tell func(Event), parts ...Part) *Keeper {
	k := &Keeper{log: log, tell: tell, now: time.Now, parts: parts, ledgers: make([]Ledger, len(parts)), wake: make(chan struct{}, 1)}
	k.note()
	return k
}

// Clock lets tests say what time it is. It is called before the first look.
func (k *Keeper) Clock(now func() time.Time) { k.now = now }

// Run looks after the parts until the context ends: when there is a notice, and every second.
func (k *Keeper) Run(ctx context.Context, notices <-chan struct{}) {
	tick := time.NewTicker(anyway)
	defer tick.Stop()
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-notices:
			if quiet == nil { // a further notice does not put it off
				quiet = time.After(settle)
			}
			continue
		case <-k.wake:
		case <-quiet:
		case <-tick.C:
		}
		quiet = nil
		k.Look()
	}
}

// Wake has the parts looked at soon.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Forget ends all contests: something else should hold from now on. It may be called while the
// parts are looked at.
func (k *Keeper) Forget() {
	k.forget.Store(true)
	k.Wake()
}

// Look looks at every part once, repairs what differs, and tells what has happened.
func (k *Keeper) Look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	forget := k.forget.Swap(false)
	for i := range k.parts {
		part, ledger := &k.parts[i], &k.ledgers[i]
		if forget {
			ledger.Forget()
		}
		differences, err := part.Look()
		for _, event := range ledger.Look(k.now(), differences, err) {
			event.Part = part.Name
			event.log(k.log)
			k.tell(event)
		}
	}
	k.note()
}

func (k *Keeper) note() {
	status := make([]model.Upkeep, len(k.parts))
	for i := range k.parts {
		status[i] = k.ledgers[i].Status(k.parts[i].Name)
	}
	k.status.Store(&status)
}

// Status returns how it was with each part after the last look.
func (k *Keeper) Status() []model.Upkeep { return *k.status.Load() }
