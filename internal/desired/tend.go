package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
	"weir.io/weir/internal/store"
)

// leastPause is the shortest time before the keeper looks again for generations to take out of the
// logs: those of many services leave together. After errors it waits longer each time, up to
// lastPause.
const (
	leastPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// placePause is the same for generations that begin to place connections: those of many services
// begin at about the same time, and a notice may be as short as that.
const placePause = 10 * time.Millisecond

// reportsPause is how often the logs are compared with what agents report, by each
// director.
const reportsPause = 5 * time.Second

// Reports are what agents say about connections.
type Reports interface {
	// Latest returns the last report about each of these backends, and whether it is known yet
	// which reports exist.
	Latest(backends map[netip.Addr]bool) (reports map[netip.Addr]model.AgentReport, known bool)
	// Signs is sent to when there is a report with signs of strain, or the first one without any.
	Signs() <-chan struct{}
}

// renew brings the evidence up to date, unless it was just renewed for the same backends.
func (k *Keeper) renew() {
	k.renewing.Lock()
	defer k.renewing.Unlock()
	if k.reports == nil {
		return
	}
	now, backends := time.Now(), k.backends()
	if now.Sub(k.renewed) < reportsPause && maps.Equal(backends, k.asked) {
		return
	}
	latest, known := k.reports.Latest(backends)
	k.evidence.Renew(latest, known, now)
	k.renewed, k.asked = now, backends
}

// backends returns the addresses of all backends in mode gue.
func (k *Keeper) backends() map[netip.Addr]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[netip.Addr]bool{}
	for d := range k.everything().All() {
		for _, b := range d.Service.Backends {
			if b.ModeIn(d.Service) == model.GUE {
				all[b.Address] = true
			}
		}
	}
	return all
}

// Agents says how many backends are reported on.
func (k *Keeper) Agents() model.ReporterStatus {
	k.renew()
	return k.evidence.Status(time.Now())
}

// Run takes generations out of the logs in time, adds those that wait for room or for a store, and
// follows what the group writes, until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { k.whenDue(ctx, partLogs, leastPause, k.moved.tend, k.due, k.tend) })
	running.Go(func() { k.followRuns(ctx) })
	running.Go(func() { k.whenDue(ctx, "coming generations", placePause, k.moved.place, k.dueToPlace, k.place) })
	if k.reports != nil && k.group != nil {
		running.Go(func() { k.listen(ctx) })
	}
	if k.health != nil {
		running.Go(func() { k.watch(ctx) })
	}
	if k.group != nil {
		running.Go(func() { k.whenDue(ctx, "the group's logs", leastPause, k.moved.tendShared, k.dueShared, k.tendShared) })
		k.noteRuns()
		for s := range k.news {
			k.adopt(s)
			k.noteRuns()
		}
	}
	running.Wait()
}

// whenDue does something when it is due, and again no sooner than after the least pause. If it
// fails, or leaves as much to do as before, it is tried again after longer and longer pauses, and
// is on the list.
func (k *Keeper) whenDue(ctx context.Context, part string, least time.Duration, moved <-chan struct{}, due func() time.Time, do func() error) {
	pauses, failed := retry.Backoff{First: least, Last: lastPause}, false
	pause := pauses.Next()
	for ctx.Err() == nil {
		at := due()
		var next <-chan time.Time
		if !at.IsZero() {
			next = time.After(max(time.Until(at), pause))
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
			if !failed {
				pauses.Reset()
				pause = pauses.Next()
			}
			continue
		case <-next:
		}
		err := do()
		if ctx.Err() == nil && !errors.As(err, new(*PendingError)) { // the engine lists that, as the kernel's problem
			k.problems.Report(model.ProblemStore, part, notUpToDate(err))
		}
		failed = err != nil
		if !failed && !due().Equal(at) {
			pauses.Reset()
		}
		pause = pauses.Next()
	}
}

func notUpToDate(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("logs are not up to date, what runs goes on: %w", err)
}

// firstDue returns when a generation, or slots of one, may first leave one of the logs, or a
// backend that starts slowly gets another share, or the zero time. compared is when the logs were
// last compared with agents' reports; they are the group's or this director's own.
func (k *Keeper) firstDue(s store.State, compared time.Time, shared bool) time.Time {
	known := k.knows(s, shared)
	var first time.Time
	note := func(due time.Time) {
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	for d := range s.Tended().All() {
		note(history.Due(d.Log, &d.Service, k.engine.Held(d.Service.ID()), k.evidence, known.now))
		note(known.dueToStep(d.Log, &d.Service))
		if awaitsReports(d.Log, &d.Service, k.evidence) {
			note(compared.Add(reportsPause))
		}
	}
	return first
}

// due returns when tend has something to do next, or the zero time.
func (k *Keeper) due() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unstored != nil {
		return time.Now()
	}
	return k.firstDue(k.state, k.compared, false)
}

// dueShared returns when tendShared has something to do next, or the zero time.
func (k *Keeper) dueShared() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.firstDue(k.shared, k.comparedShared, true)
}

// tend does what is due in this director's own store.
func (k *Keeper) tend() error {
	k.mu.Lock()
	file := k.unstored
	k.mu.Unlock()
	if file != nil {
		err := k.SetFile(*file)
		if errors.As(err, new(*RefusedError)) {
			return nil // it is listed as a problem
		}
		return err
	}
	k.renew()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.compared = time.Now()
	after, err := k.update(k.local, k.trim(false))
	if err != nil || after.Revision == k.state.Revision {
		return err
	}
	k.state = after
	return k.apply()
}

// learned is when this director learned of a service's newest generation.
type learned struct {
	number uint64
	at     time.Time
}

// asOf returns a log as it is at a time: its newest generations may place no connections yet. The
// lock is held.
func (k *Keeper) asOf(id model.ServiceID, log model.Log, now time.Time) model.Log {
	if len(log.Generations) == 0 {
		return log
	}
	if newest := log.Generations[0].Number; k.learned[id].number != newest {
		k.learned[id] = learned{newest, now}
	}
	coming, next := history.Coming(log, k.learned[id].at, now)
	log.Coming = coming
	if coming > 0 && (k.placing.IsZero() || next.Before(k.placing)) {
		k.placing = next
	}
	return log
}

// dueToPlace returns when a generation that is coming first places connections, or the
// zero time.
func (k *Keeper) dueToPlace() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.placing
}

// place lets generations place connections when their time has come.
func (k *Keeper) place() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.placing.IsZero() || time.Now().Before(k.placing) {
		return nil
	}
	return k.apply()
}
