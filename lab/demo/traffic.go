package demo

import (
	"context"
	"slices"
	"sync"
	"time"

	"weir.io/weir/lab/netlab"
)

// A row's clients, in pairs: one of each pair keeps its connections through several edits, the
// other opens a new one for every few requests.
const (
	httpPairs = 2
	echoPairs = 1
)

const (
	pauseLong  = 100 * time.Millisecond // between requests of a long connection
	pauseShort = 50 * time.Millisecond  // between short connections
	shortAsks  = 2                      // requests of a short connection
)

// sizes of requests and answers, in bytes, taken in turn: the large ones fill
// segments both ways.
var sizes = []int{64, 200, 8000, 1000}

// traffic is the demo's clients and what they saw.
type traffic struct {
	client   *netlab.Host
	timeline *timeline
	stages   []stage
	life     time.Duration // of a long connection
	tallies  map[*row]*tally
	clients  sync.WaitGroup
	opening  sync.RWMutex // held by each connection until its first answer
}

// start keeps the clients of rows busy until the context ends.
func (t *traffic) start(ctx context.Context, rows []*row) {
	for _, r := range rows {
		for _, kind := range []struct {
			dial  dialer
			pairs int
		}{{dialHTTP, httpPairs}, {dialEcho, echoPairs}} {
			for n := range kind.pairs {
				t.clients.Go(func() { t.long(ctx, r, kind.dial, n) })
				t.clients.Go(func() { t.short(ctx, r, kind.dial) })
			}
		}
	}
}

// long keeps a connection for its life, and then opens the next. The first one's
// life is shorter for every other client, so that not all end together.
func (t *traffic) long(ctx context.Context, r *row, dial dialer, n int) {
	life := t.life / time.Duration(1+n%2)
	for ctx.Err() == nil {
		end := time.Now().Add(life)
		life = t.life
		t.connect(ctx, r, dial, func(asked int) bool {
			return asked == 0 || sleep(ctx, pauseLong) && time.Now().Before(end)
		})
	}
}

func (t *traffic) short(ctx context.Context, r *row, dial dialer) {
	for sleep(ctx, pauseShort) {
		t.connect(ctx, r, dial, func(asked int) bool { return asked < shortAsks })
	}
}

// connect opens a connection and asks as long as more says so, or until it breaks.
func (t *traffic) connect(ctx context.Context, r *row, dial dialer, more func(asked int) bool) {
	tally := t.tallies[r]
	t.opening.RLock()
	opens := sync.OnceFunc(t.opening.RUnlock)
	defer opens()
	opened := time.Now()
	attempt := attempt{good: opened, backend: -1}
	conn, err := dial(ctx, t.client, r.vip)
	if err != nil {
		opens()
		t.failed(ctx, tally, attempt, err)
		sleep(ctx, pauseLong)
		return
	}
	defer conn.Close()
	// An answer is not worth waiting for when the demo is over.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	for asked := 0; more(asked); asked++ {
		backend, err := conn.ask(sizes[asked%len(sizes)])
		if err != nil {
			t.failed(ctx, tally, attempt, err)
			return
		}
		tally.answered()
		opens()
		// A new UDP flow goes to an older owner of its slot for a while, because it cannot be told
		// from an old flow: it says nothing about the weights.
		if _, tcp := conn.(*httpConnection); tcp && asked == 0 {
			if stage, ok := t.timeline.current(opened); ok {
				tally.placed(backend, t.stages[stage].share())
			}
		}
		attempt.good, attempt.backend = time.Now(), backend
	}
}

// attempt is a request: when its connection was last known to be well, and which backend had it
// then, -1 if none.
type attempt struct {
	good    time.Time
	backend int
}

// failed notes that a request failed. There is one excuse: its connection's backend was removed or
// lost, which ends connections.
func (t *traffic) failed(ctx context.Context, tally *tally, a attempt, err error) {
	if ctx.Err() != nil {
		return
	}
	tally.failed(err, t.removed(a))
}

// removed reports whether the attempt's backend was not a member at some time since all was well.
func (t *traffic) removed(a attempt) bool {
	if a.backend < 0 {
		return false
	}
	return slices.ContainsFunc(t.stages[t.timeline.at(a.good):t.timeline.latest()+1], func(s stage) bool {
		return !s.has(a.backend)
	})
}

// sleep reports whether the time passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
