// Package traffic is the load of a chaos run: TCP and QUIC connections and UDP flows whose every
// byte is checked at both ends, and the tracker of their fate.
package traffic

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/lab/netlab"
)

// Load is the clients of a run.
type Load struct {
	Client      *netlab.Host
	Addresses   []netip.Addr   // the client's: QUIC connections move between them
	TCP, UDP    netip.AddrPort // of the services
	QUIC        netip.AddrPort
	Tracker     *Tracker
	Connections int           // TCP, kept open at the same time
	Flows       int           // UDP
	QUICs       int           // QUIC connections; every second moves
	Window      time.Duration // the services' drain
	Outlives    time.Duration // the age that a connection must reach
	Patience    time.Duration // how long a client waits for an answer
	Seed        uint64

	dialing chan struct{} // bounds concurrent dials
	finish  chan struct{} // closed: the last exchange
	waiting atomic.Int64  // connections that are not opened yet
	clients sync.WaitGroup

	mu   sync.Mutex
	live map[*client]bool
}

// atOnce bounds how many connections are being opened at once: each takes a thread.
const atOnce = 48

// Start begins to open the connections, keeps them busy and replaces ended ones, until Finish.
func (l *Load) Start(ctx context.Context) {
	l.dialing, l.finish = make(chan struct{}, atOnce), make(chan struct{})
	l.live = map[*client]bool{}
	l.waiting.Store(int64(l.Connections + l.Flows + l.QUICs))
	kinds := kinds(l.Window)
	for n := range l.Connections {
		l.clients.Go(func() { l.keep(ctx, l.openTCP(kindOf(kinds, n), rand.New(rand.NewPCG(l.Seed, uint64(n))))) })
	}
	for n := range l.Flows {
		l.clients.Go(func() { l.keepFlow(ctx, rand.New(rand.NewPCG(l.Seed, uint64(1<<32+n)))) })
	}
	for n := range l.QUICs {
		l.clients.Go(func() {
			l.keep(ctx, l.openQUIC(kindOf(kinds, n), n%2 == 1, rand.New(rand.NewPCG(l.Seed, uint64(1<<33+n)))))
		})
	}
}

// opener opens a connection, again and again.
type opener func(ctx context.Context) (*client, error)

func (l *Load) openTCP(k kind, rng *rand.Rand) opener {
	return func(ctx context.Context) (*client, error) {
		d, err := l.dialTCP(ctx)
		if err != nil {
			return nil, err
		}
		return l.newClient(d, "tcp", k, rng), nil
	}
}

func (l *Load) openQUIC(k kind, moves bool, rng *rand.Rand) opener {
	return func(ctx context.Context) (*client, error) {
		d, q, err := l.dialQUIC(ctx, rng)
		if err != nil {
			return nil, err
		}
		c := l.newClient(d, "quic", k, rng)
		if moves {
			c.moves = q
		}
		return c, nil
	}
}

// Waiting returns how many connections have not yet been opened for the first time.
func (l *Load) Waiting() int { return int(l.waiting.Load()) }

// spread is the time within which the last exchanges begin.
const spread = 2 * time.Second

// Finish lets every connection do a last exchange and close, and waits for that.
func (l *Load) Finish() {
	close(l.finish)
	l.mu.Lock()
	rng := rand.New(rand.NewPCG(l.Seed, 1<<40))
	for c := range l.live {
		c.wake(time.Duration(rng.Int64N(int64(spread))))
	}
	l.mu.Unlock()
	l.clients.Wait()
}

func (l *Load) finishing(ctx context.Context) bool {
	select {
	case <-l.finish:
		return true
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// keep keeps one connection open: when it ends, it opens the next.
func (l *Load) keep(ctx context.Context, open opener) {
	first := true
	for !l.finishing(ctx) {
		c, err := open(ctx)
		if err != nil {
			l.Tracker.failedToOpen()
			l.pause(ctx, 100*time.Millisecond)
			continue
		}
		if first {
			l.waiting.Add(-1)
			first = false
		}
		l.note(c, true)
		// A canceled run counts nothing any more; its sockets end with it.
		stop := context.AfterFunc(ctx, func() { c.conn.Close() })
		c.live(l.lifeOf(c.kind, c.rng))
		stop()
		l.note(c, false)
	}
}

// forever is longer than any run.
const forever = 1000 * time.Hour

func (l *Load) lifeOf(k kind, rng *rand.Rand) time.Duration {
	if k.life == (pauses{}) {
		return forever
	}
	return k.life.draw(rng)
}

func (l *Load) note(c *client, live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if live {
		l.live[c] = true
		return
	}
	delete(l.live, c)
}

// pause waits, but not beyond the end of the run.
func (l *Load) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.finish:
	case <-ctx.Done():
	}
}
