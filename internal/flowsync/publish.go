package flowsync

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

const (
	handshakeTime = 5 * time.Second
	aliveEvery    = 3 * time.Second
	writeTime     = 10 * time.Second // for one frame
)

// publisher shares flows with all directors that have dialed. The memory is followed while there are any.
type publisher struct {
	memory Memory
	log    *slog.Logger

	mu     sync.Mutex
	queues map[*queue]bool
	stop   context.CancelFunc // nil: the memory is not followed
	begun  bool               // the memory says what it learns
	done   sync.WaitGroup
}

// join makes a queue that gets everything. It begins with all that is remembered, as soon as
// nothing can be missed between that and what is learned from then on.
func (t *publisher) join(q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queues[q] = true
	if t.begun {
		q.everything()
	}
	if t.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		t.stop = cancel
		t.done.Go(func() { t.follow(ctx) })
	}
}

func (t *publisher) leave(q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.queues, q)
	if len(t.queues) == 0 && t.stop != nil {
		t.stop()
		t.stop, t.begun = nil, false
	}
}

// follow hands what the memory learns to all queues, until the context ends.
func (t *publisher) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := t.memory.FollowFlows(ctx, func(news model.FlowNews, unshared bool) { t.spread(ctx, news, unshared) })
		if err == nil || ctx.Err() != nil {
			return
		}
		t.log.Error("share with the group what is learned of flows", "error", err)
		retry.Sleep(ctx, lastPause)
	}
}

func (t *publisher) spread(ctx context.Context, news model.FlowNews, unshared bool) {
	frames := map[version][]flowsFrame{}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return // the call is of an ended following
	}
	t.begun = true
	for q := range t.queues {
		if unshared {
			q.everything()
		}
		if _, made := frames[q.version]; !made {
			frames[q.version] = slices.Concat(framesOf(news.Flows, q.version), framesOfNAT(news.NAT, q.version))
		}
		if some := frames[q.version]; len(some) > 0 {
			q.add(some)
		}
	}
}

func (t *publisher) close() { t.done.Wait() }

// publish writes to a director that has dialed until that one goes or is too slow.
func (t *publisher) publish(ctx context.Context, conn *tls.Conn, p *peer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	q := newQueue(&p.dropped, versionOf(conn.ConnectionState().NegotiatedProtocol))
	t.join(q)
	defer t.leave(q)
	go func() { cancel(awaitEnd(conn)) }()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	counted := false // counts of resets were shared with it
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-alive.C:
			f := frame(frameAlive)
			if q.version != unclassed {
				if resets := t.memory.FreshResets(); len(resets) > 0 || counted {
					f, counted = frameOfResets(resets), len(resets) > 0
				}
			}
			if err := write(conn, f); err != nil {
				return err
			}
		case <-q.wake:
			if err := t.empty(q, conn, p); err != nil {
				return err
			}
		}
	}
}

// empty shares all that is in the queue.
func (t *publisher) empty(q *queue, conn net.Conn, p *peer) error {
	frames, everything := q.popAll()
	if everything {
		if err := t.publishAll(conn, p, q.version); err != nil {
			return err
		}
	}
	for _, f := range frames {
		if err := write(conn, f.bytes); err != nil {
			return err
		}
		p.sharedFlows.Add(uint64(f.flows))
	}
	return nil
}

func (t *publisher) publishAll(conn net.Conn, p *peer, v version) error {
	var broken error
	room := mostFresh
	if v == unclassed {
		room = 0 // the other one would keep them as long as any
	}
	writeAll := func(frames []flowsFrame) bool {
		for _, f := range frames {
			if broken = write(conn, f.bytes); broken != nil {
				return false
			}
			p.sharedFlows.Add(uint64(f.flows))
		}
		return true
	}
	err := t.memory.RememberedFlows(func(some []model.RememberedFlow) bool {
		return writeAll(framesOf(fewFresh(some, &room), v))
	})
	if err = errors.Join(err, broken); err != nil {
		return err
	}
	if v >= translated {
		err = t.memory.SharedNATFlows(func(some []model.NATFlow) bool { return writeAll(framesOfNAT(fewFreshNAT(some, &room), v)) })
	}
	if err = errors.Join(err, broken); err != nil {
		return err
	}
	p.sharedAll.Add(1)
	return write(conn, frame(frameAll))
}

func write(conn net.Conn, f []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	_, err := conn.Write(f)
	return err
}

// awaitEnd waits until the other end goes. The other end sends nothing.
func awaitEnd(conn net.Conn) error {
	n, err := conn.Read(make([]byte, 1))
	switch {
	case n > 0:
		return errors.New("a director that only listens has said something")
	case errors.Is(err, io.EOF):
		return errors.New("it has gone")
	}
	return err
}

// accept accepts connections until the listener is closed.
func (s *Sync) accept(ctx context.Context, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return
		}
		if err != nil {
			s.log.Warn("take in a director of the group", "error", err)
			retry.Sleep(ctx, firstPause)
			continue
		}
		from, is := s.fromGroup(conn.RemoteAddr())
		if !is {
			s.strangers.Add(1)
			conn.Close()
			continue
		}
		known := s.handshakes.enter(from, conn)
		s.running.Go(func() { s.serve(ctx, conn, known) })
	}
}

// fromGroup returns the address that a connection comes from, and whether it is another director's:
// others are not worth a handshake.
func (s *Sync) fromGroup(from net.Addr) (address netip.Addr, is bool) {
	at, is := from.(*net.TCPAddr)
	if !is {
		return netip.Addr{}, false
	}
	address = at.AddrPort().Addr().Unmap()
	s.mu.Lock()
	defer s.mu.Unlock()
	return address, slices.ContainsFunc(s.peers, func(p *peer) bool { return p.address == address })
}

// serve shares flows with a director that has dialed, if it is of the group. known is called when its
// handshake has ended.
func (s *Sync) serve(ctx context.Context, raw net.Conn, known func()) {
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	defer raw.Close()
	conn := tls.Server(raw, s.secure(func(fingerprint string) bool { return s.peerOf(fingerprint) != nil }))
	hello, cancel := context.WithTimeout(ctx, handshakeTime)
	err := conn.HandshakeContext(hello)
	cancel()
	known()
	if err != nil {
		s.strangers.Add(1)
		s.log.Debug("refused a stranger that asks for flows", "from", raw.RemoteAddr(), "error", err)
		return
	}
	fingerprint := fingerprintOf(conn.ConnectionState().PeerCertificates[0].Raw)
	p := s.peerOf(fingerprint)
	if p == nil {
		return // it has left the group meanwhile
	}
	p.dialed(fingerprint)
	leave := p.enter(raw)
	defer leave()
	s.log.Info("flows are shared with a director of the group", "director", p.address)
	err = s.publisher.publish(ctx, conn, p)
	if ctx.Err() == nil {
		s.log.Info("flows are no longer shared with a director of the group", "director", p.address, "error", err)
	}
}

// queueMost is how many bytes may wait for a slow director.
const queueMost = 8 << 20

// queue is what to share with one director. When it has become too long it is dropped, and the director
// gets everything again.
type queue struct {
	wake    chan struct{}  // is sent to when the queue has something
	dropped *atomic.Uint64 // how often it has become too long
	version version        // that the director understands

	mu     sync.Mutex
	frames []flowsFrame
	bytes  int
	again  bool
}

func newQueue(dropped *atomic.Uint64, v version) *queue {
	return &queue{wake: make(chan struct{}, 1), dropped: dropped, version: v}
}

func (q *queue) add(frames []flowsFrame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.again {
		return // everything will be shared anyway
	}
	for _, f := range frames {
		q.bytes += len(f.bytes)
	}
	q.frames = append(q.frames, frames...)
	if q.bytes > queueMost {
		q.dropped.Add(1)
		q.restart()
	}
	q.ring()
}

// everything makes the queue share everything with the director again.
func (q *queue) everything() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.restart()
	q.ring()
}

func (q *queue) restart() { q.frames, q.bytes, q.again = nil, 0, true }

func (q *queue) ring() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take empties the queue. What is added from now on comes after everything.
func (q *queue) popAll() (frames []flowsFrame, everything bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	frames, everything = q.frames, q.again
	q.frames, q.bytes, q.again = nil, 0, false
	return frames, everything
}

// handshakesMost is how many connections of one address may be in their handshakes at once. A
// director of the group has one; more come only from a process that has ended without a word, or
// from somebody else on that host.
const handshakesMost = 4

// handshakes are the connections whose handshakes are under way. Each address has places of its own, so
// connections that say nothing keep no other director out.
type handshakes struct {
	mu      sync.Mutex
	waiting map[netip.Addr][]net.Conn // the oldest first
}

// enter notes a connection until leave is called. If its address has no place left, it takes that
// of the oldest one, which is closed.
func (h *handshakes) enter(from netip.Addr, conn net.Conn) (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if list := h.waiting[from]; len(list) == handshakesMost {
		list[0].Close()
		h.waiting[from] = slices.Delete(list, 0, 1)
	}
	h.waiting[from] = append(h.waiting[from], conn)
	return func() { h.leave(from, conn) }
}

func (h *handshakes) leave(from netip.Addr, conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting[from] = slices.DeleteFunc(h.waiting[from], func(c net.Conn) bool { return c == conn })
	if len(h.waiting[from]) == 0 {
		delete(h.waiting, from)
	}
}
