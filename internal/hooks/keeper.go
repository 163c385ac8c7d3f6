package hooks

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// The first and the longest pause after a failed call: each is twice the one before. A change does
// not wait for the end of a pause.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// wanted is what a hook should be told.
type wanted struct {
	vips     []netip.Addr // in order
	draining bool
}

func (w wanted) same(other wanted) bool {
	return w.draining == other.draining && slices.Equal(w.vips, other.vips)
}

// keeper keeps one hook informed. One goroutine, the one in run, owns it; the mutex protects what
// others set and read.
type keeper struct {
	hook  model.Hook
	log   *slog.Logger
	pause time.Duration // the first pause
	end   context.CancelFunc
	ended chan struct{}
	wake  chan struct{} // now has changed

	known map[netip.Addr]bool // VIPs that the hook may have as up
	took  wanted              // the state that the hook last took
	began bool                // the hook has taken some state

	mu     sync.Mutex
	now    wanted
	status model.HookStatus
}

func newKeeper(hook model.Hook, now wanted, end context.CancelFunc, log *slog.Logger) *keeper {
	return &keeper{hook: hook, log: log, pause: firstPause, end: end, ended: make(chan struct{}), wake: make(chan struct{}, 1),
		known: map[netip.Addr]bool{}, now: now, status: model.HookStatus{Name: hook.Name}}
}

// set changes what the hook should be told. It is not told the same again.
func (k *keeper) set(now wanted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.same(k.now) {
		return
	}
	k.now, k.status.Current = now, false
	select {
	case k.wake <- struct{}{}:
	default: // it has not seen the previous wake yet
	}
}

// news returns what the hook should be told, and whether a call is needed: it may be what the hook
// last took, and then it counts as told, unless a call has failed since.
func (k *keeper) news(attempt int) (now wanted, is bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Current = k.began && attempt == 1 && k.now.same(k.took)
	return k.now, !k.status.Current
}

// report returns the hook's status.
func (k *keeper) report() model.HookStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	status := k.status
	status.Up = len(k.now.vips)
	return status
}

// run calls the hook until the context ends: when there is news, and again after a pause when a
// call failed.
func (k *keeper) run(ctx context.Context) {
	for attempt := 1; ctx.Err() == nil; {
		var retry <-chan time.Time
		if now, isNew := k.news(attempt); isNew {
			if err := k.once(ctx, now, attempt); err != nil {
				pause := k.after(attempt)
				attempt++
				retry = time.After(pause)
				k.failed(ctx, err, pause)
			} else {
				attempt = 1
				k.succeeded(now)
			}
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-retry:
		}
	}
}

// after returns the pause after that many failed attempts in a row.
func (k *keeper) after(attempts int) time.Duration {
	return min(k.pause<<min(attempts-1, 16), lastPause)
}

// once calls the hook.
func (k *keeper) once(ctx context.Context, now wanted, attempt int) error {
	call := k.call(now, attempt)
	for _, vip := range now.vips {
		k.known[vip] = true
	}
	k.mu.Lock()
	k.status.Running, k.status.NextTry = true, time.Time{}
	k.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, time.Duration(k.hook.Timeout))
	defer cancel()
	began := time.Now()
	err := invoke(limited, &k.hook, call)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Running, k.status.Duration = false, model.Duration(time.Since(began).Round(time.Millisecond))
	k.status.Calls++
	return err
}

// call is what the hook is told.
func (k *keeper) call(now wanted, attempt int) model.HookCall {
	call := model.HookCall{Hook: k.hook.Name, Event: model.HookChange, Attempt: attempt,
		Up: append([]netip.Addr{}, now.vips...), Came: []netip.Addr{}, Went: []netip.Addr{}}
	switch {
	case now.draining:
		call.Event = model.HookDrain
	case !k.began:
		call.Event = model.HookStart
	}
	for _, vip := range now.vips {
		if !in(k.took.vips, vip) {
			call.Came = append(call.Came, vip)
		}
	}
	for vip := range k.known {
		if !in(now.vips, vip) {
			call.Went = append(call.Went, vip)
		}
	}
	slices.SortFunc(call.Went, netip.Addr.Compare)
	return call
}

// in reports whether a VIP is in a list in order.
func in(vips []netip.Addr, vip netip.Addr) bool {
	_, is := slices.BinarySearchFunc(vips, vip, netip.Addr.Compare)
	return is
}

func (k *keeper) succeeded(now wanted) {
	k.began, k.took = true, now
	clear(k.known)
	for _, vip := range now.vips {
		k.known[vip] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status.Problem != "" {
		k.log.Info("hook has taken what it is told, after failures")
	}
	k.status.Took, k.status.Problem = time.Now().Truncate(time.Second), ""
	k.status.Current = now.same(k.now)
}

func (k *keeper) failed(ctx context.Context, err error, pause time.Duration) {
	if ctx.Err() != nil {
		return // it was told to end
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Failures++
	if k.status.Problem != err.Error() { // the same error is logged once
		k.log.Warn("hook failed", "error", err, "retry-in", pause)
	}
	k.status.Problem = err.Error()
	k.status.NextTry = time.Now().Add(pause).Truncate(time.Second)
}
