// Package upkeep keeps the parts of a host that weir owns as they should be. What holds is compared
// with what should hold, never with what held before: when the kernel says that something has
// changed, and once a second anyway. A difference is repaired at once and told once. weir does not
// fight another owner: see repairs.
//
// The owner of a part says how it should be and how to repair it (Part); this package says when to
// look, whether to repair, and what to tell people.
package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
)

// The parts whose problems have kinds of their own: those of the whole configuration, and of
// interfaces and the programs at them.
const (
	Configuration = "configuration"
	Interfaces    = "interfaces"
	XDP           = "xdp"
)

// Lock is the part that keeps a second process out of a network namespace: weir works without it.
const Lock = "lock"

// MACs is the difference in part Interfaces when the host's MAC addresses are not known:
// packets go on.
const MACs = "MAC addresses"

// ErrUnknown says that a look could not find the differences, and that the next one may: a
// Reconciler leaves all as it is, and says so if that lasts for a Window.
var ErrUnknown = errors.New("not known yet what differs")

// Part is one part of the host; its owner knows how it should be.
type Part struct {
	Name string // as in docs/operate/upkeep.md
	// Look returns what differs now from what should hold; nothing: all holds. It reads the
	// host each time. An error says that the part could not be read. ErrUnknown: only this time.
	Look func() ([]Difference, error)
}

// Difference is one thing that should hold and does not.
type Difference struct {
	What  string // which thing, the same each time: "192.0.2.10 on lo"
	Found string // what is there instead: "is not there", "is 0 instead of 1"
	By    string // the process that changed it, if known: "process 4711 (ip)"
	// Repair makes it hold again. Nil: weir cannot, and waits for it.
	Repair func() error
	// Wanted reports whether it should still hold, after its owner has changed what should. Nil: it
	// should in any case.
	Wanted func() bool
}

// When a host is looked at: some time after a notice, because notices come in crowds, and regularly
// without one. The kernel does not tell of every change.
const (
	settle   = 100 * time.Millisecond
	Interval = time.Second
)

// Deps are what a Reconciler needs.
type Deps struct {
	Log     *slog.Logger
	OnEvent func(Event)      // is called with what happens, from one goroutine at a time; nil: nothing is
	Now     func() time.Time // nil: time.Now
}

// Reconciler looks after the parts of one owner.
type Reconciler struct {
	deps   Deps
	forget atomic.Bool
	status atomic.Pointer[[]model.Upkeep]
	wake   chan struct{}
	alive  chan struct{} // Run sends between two looks

	mu      sync.Mutex // one look at a time
	parts   []Part
	repairs []repairs // by part

	overwriting sync.Mutex
	overwritten map[string][]Difference // by part: see Overwritten
}

// New returns a Reconciler of parts, in the order in which they are looked at. What happens is also
// logged. Nothing is done before Look or Run.
func New(d Deps, parts ...Part) *Reconciler {
	if d.OnEvent == nil {
		d.OnEvent = func(Event) {}
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	r := &Reconciler{deps: d, parts: parts, repairs: make([]repairs, len(parts)), wake: make(chan struct{}, 1), alive: make(chan struct{})}
	r.note()
	return r
}

// Run looks after the parts until the context ends: when there is a notice, and every Interval.
func (r *Reconciler) Run(ctx context.Context, notices *Hearing) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-notices.C():
			if quiet == nil { // a further notice does not put it off
				quiet = time.After(settle)
			}
			continue
		case r.alive <- struct{}{}:
			continue
		case <-r.wake:
		case <-quiet:
		case <-tick.C:
		}
		quiet = nil
		r.Look()
	}
}

// Alive waits until Run is done with what it does, and ready for more.
func (r *Reconciler) Alive(ctx context.Context) error {
	select {
	case <-r.alive:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wake has the parts looked at soon.
func (r *Reconciler) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Forget ends all contests: something else should hold from now on. It may be called while the
// parts are looked at.
func (r *Reconciler) Forget() {
	r.forget.Store(true)
	r.Wake()
}

// Overwritten takes what differed in some parts just before their owner wrote them whole, which has
// repaired it. No look would find it any more: the next one counts it as repaired, and tells it. What
// the owner no longer wants was not repaired.
func (r *Reconciler) Overwritten(found map[string][]Difference) {
	r.overwriting.Lock()
	defer r.overwriting.Unlock()
	if r.overwritten == nil {
		r.overwritten = map[string][]Difference{}
	}
	for part, differences := range found {
		differences = slices.DeleteFunc(differences, func(d Difference) bool { return d.Wanted != nil && !d.Wanted() })
		r.overwritten[part] = alsoDiffers(r.overwritten[part], differences)
	}
}

// withOverwritten adds what was overwritten of a part to what a look has found.
func (r *Reconciler) withOverwritten(part string, found []Difference) []Difference {
	r.overwriting.Lock()
	defer r.overwriting.Unlock()
	repaired := r.overwritten[part]
	delete(r.overwritten, part)
	for i := range repaired {
		repaired[i].Repair = func() error { return nil }
	}
	return alsoDiffers(found, repaired)
}

// alsoDiffers adds differences of further things.
func alsoDiffers(found, more []Difference) []Difference {
	for _, d := range more {
		if !slices.ContainsFunc(found, func(other Difference) bool { return other.What == d.What }) {
			found = append(found, d)
		}
	}
	return found
}

// Look looks at every part once, repairs what differs, and tells what has happened.
func (r *Reconciler) Look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	forget := r.forget.Swap(false)
	for i := range r.parts {
		part, of := &r.parts[i], &r.repairs[i]
		if forget {
			of.forget()
		}
		differences, err := part.Look()
		if err == nil {
			differences = r.withOverwritten(part.Name, differences)
		}
		for _, event := range of.look(r.deps.Now(), differences, err) {
			event.Part = part.Name
			event.log(r.deps.Log)
			r.deps.OnEvent(event)
		}
	}
	r.note()
}

func (r *Reconciler) note() {
	status := make([]model.Upkeep, len(r.parts))
	for i := range r.parts {
		status[i] = r.repairs[i].status(r.parts[i].Name)
	}
	r.status.Store(&status)
}

// Status returns how it was with each part after the last look.
func (r *Reconciler) Status() []model.Upkeep { return *r.status.Load() }
