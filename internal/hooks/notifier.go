package hooks

import (
	"context"
	"log/slog"
	"maps"
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
	vips     []model.VIP // in order
	services []model.ToldService
	draining bool
}

func (w wanted) same(other wanted) bool {
	return w.draining == other.draining && slices.Equal(w.vips, other.vips) && slices.EqualFunc(w.services, other.services, sameService)
}

func sameService(a, b model.ToldService) bool {
	return a.Name == b.Name && a.ID == b.ID && a.State == b.State && slices.Equal(a.Backends, b.Backends)
}

// notifier notifies one hook of each new state. One goroutine, the one in run, owns it; the mutex protects what
// others set and read.
type notifier struct {
	hook  model.Hook
	log   *slog.Logger
	pause time.Duration // the first pause
	end   context.CancelFunc
	ended chan struct{}
	wake  chan struct{} // now has changed

	known    map[model.VIP]bool // VIPs that the hook may have as up
	may      told               // backends that the hook may know, and what it took last of them
	took     wanted             // the state that the hook last took
	informed bool               // the hook has taken some state

	mu     sync.Mutex
	now    wanted
	status model.HookStatus
}

func newNotifier(hook model.Hook, now wanted, end context.CancelFunc, log *slog.Logger) *notifier {
	return &notifier{hook: hook, log: log, pause: firstPause, end: end, ended: make(chan struct{}), wake: make(chan struct{}, 1),
		known: map[model.VIP]bool{}, now: now, status: model.HookStatus{Name: hook.Name}}
}

// set changes what the hook should be told. It is not told the same again.
func (n *notifier) set(now wanted) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.same(n.now) {
		return
	}
	n.now, n.status.Current = now, false
	select {
	case n.wake <- struct{}{}:
	default: // it has not seen the previous wake yet
	}
}

// news returns what the hook should be told, and whether a call is needed: it may be what the hook
// last took, and then it counts as told, unless a call has failed since.
func (n *notifier) news(attempt int) (now wanted, is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status.Current = n.informed && attempt == 1 && n.now.same(n.took)
	return n.now, !n.status.Current
}

// report returns the hook's status.
func (n *notifier) report() model.HookStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	status := n.status
	status.Up = len(n.now.vips)
	return status
}

// run calls the hook until the context ends: when there is news, and again after a pause when a
// call failed.
func (n *notifier) run(ctx context.Context) {
	for attempt := 1; ctx.Err() == nil; {
		var retry <-chan time.Time
		if now, isNew := n.news(attempt); isNew {
			if err := n.once(ctx, now, attempt); err != nil {
				pause := n.after(attempt)
				attempt++
				retry = time.After(pause)
				n.failed(ctx, err, pause)
			} else {
				attempt = 1
				n.succeeded(now)
			}
		}
		select {
		case <-ctx.Done():
		case <-n.wake:
		case <-retry:
		}
	}
}

// after returns the pause after that many failed attempts in a row.
func (n *notifier) after(attempts int) time.Duration {
	return min(n.pause<<min(attempts-1, 16), lastPause)
}

// once calls the hook.
func (n *notifier) once(ctx context.Context, now wanted, attempt int) error {
	call := n.call(now, attempt)
	for _, vip := range now.vips {
		n.known[vip] = true
	}
	n.may.add(now.services)
	n.mu.Lock()
	n.status.Running, n.status.NextTry = true, time.Time{}
	n.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, time.Duration(n.hook.Timeout))
	defer cancel()
	began := time.Now()
	err := invoke(limited, &n.hook, call)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status.Running, n.status.Duration = false, model.Duration(time.Since(began).Round(time.Millisecond))
	n.status.Calls++
	return err
}

// call is what the hook is told.
func (n *notifier) call(now wanted, attempt int) model.HookCall {
	call := model.HookCall{Hook: n.hook.Name, Event: model.HookChange, Attempt: attempt}
	switch {
	case now.draining:
		call.Event = model.HookDrain
	case !n.informed:
		call.Event = model.HookStart
	}
	of := map[model.Segment]*model.HookSegment{{}: empty(model.Segment{})}
	add := func(vip model.VIP, list func(*model.HookSegment) *[]netip.Addr) {
		if of[vip.Segment] == nil {
			of[vip.Segment] = empty(vip.Segment)
		}
		to := list(of[vip.Segment])
		*to = append(*to, vip.Address)
	}
	for _, vip := range now.vips {
		add(vip, func(s *model.HookSegment) *[]netip.Addr { return &s.Up })
		if !in(n.took.vips, vip) {
			add(vip, func(s *model.HookSegment) *[]netip.Addr { return &s.Came })
		}
	}
	for vip := range n.known {
		if !in(now.vips, vip) {
			add(vip, func(s *model.HookSegment) *[]netip.Addr { return &s.Went })
		}
	}
	for _, segment := range slices.SortedFunc(maps.Keys(of), model.Segment.Compare) {
		s := of[segment]
		slices.SortFunc(s.Went, netip.Addr.Compare)
		if segment == (model.Segment{}) {
			call.Up, call.Came, call.Went = s.Up, s.Came, s.Went
		} else {
			call.Segments = append(call.Segments, *s)
		}
	}
	call.Services = n.services(now.services)
	return call
}

// empty has lists that are not null in JSON.
func empty(s model.Segment) *model.HookSegment {
	return &model.HookSegment{Segment: s, Up: []netip.Addr{}, Came: []netip.Addr{}, Went: []netip.Addr{}}
}

// in reports whether a VIP is in a list in order.
func in(vips []model.VIP, vip model.VIP) bool {
	_, is := slices.BinarySearchFunc(vips, vip, model.VIP.Compare)
	return is
}

func (n *notifier) succeeded(now wanted) {
	n.informed, n.took = true, now
	clear(n.known)
	for _, vip := range now.vips {
		n.known[vip] = true
	}
	n.may = toldOf(now.services)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.status.Problem != "" {
		n.log.Info("hook has taken what it is told, after failures")
	}
	n.status.Took, n.status.Problem = time.Now().Truncate(time.Second), ""
	n.status.Current = now.same(n.now)
}

func (n *notifier) failed(ctx context.Context, err error, pause time.Duration) {
	if ctx.Err() != nil {
		return // it was told to end
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status.Failures++
	if n.status.Problem != err.Error() { // the same error is logged once
		n.log.Warn("hook failed", "error", err, "retry-in", pause)
	}
	n.status.Problem = err.Error()
	n.status.NextTry = time.Now().Add(pause).Truncate(time.Second)
}
