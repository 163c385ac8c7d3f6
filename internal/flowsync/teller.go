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
	"time"

	"weir.io/weir/internal/model"
)

const (
	handshakeTime = 5 * time.Second
	aliveEvery    = 3 * time.Second
	writeTime     = 10 * time.Second // for one frame
)

// teller tells all directors that have dialed. The memory is followed while there are any.
type teller struct {
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
func (t *teller) join(q *queue) {
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

func (t *teller) leave(q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.queues, q)
	if len(t.queues) == 0 && t.stop != nil {
		t.stop()
		t.stop, t.begun = nil, false
	}
}

// follow hands what the memory learns to all queues, until the context ends.
func (t *teller) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := t.memory.FollowFlows(ctx, func(news []model.RememberedFlow, untold bool) { t.spread(ctx, news, untold) })
		if err == nil || ctx.Err() != nil {
			return
		}
		t.log.Error("tell the group what is learned of flows", "error", err)
		pause(ctx, lastPause)
	}
}

func (t *teller) spread(ctx context.Context, news []model.RememberedFlow, untold bool) {
	tellings := map[version][]telling{classed: tellingsOf(news, classed)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return // the call is of an ended following
	}
	t.begun = true
	for q := range t.queues {
		if untold {
			q.everything()
		}
		if _, made := tellings[q.version]; !made {
			tellings[q.version] = tellingsOf(news, q.version)
		}
		if some := tellings[q.version]; len(some) > 0 {
			q.add(some)
		}
	}
}

func (t *teller) close() { t.done.Wait() }

// tell writes to a director that has dialed until that one goes or is too slow.
func (t *teller) tell(ctx context.Context, conn *tls.Conn, p *peer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	q := newQueue(&p.dropped, versionOf(conn.ConnectionState().NegotiatedProtocol))
	t.join(q)
	defer t.leave(q)
	go func() { cancel(awaitEnd(conn)) }()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	counted := false // it was told of resets
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

// empty tells all that is in the queue.
func (t *teller) empty(q *queue, conn net.Conn, p *peer) error {
	tellings, everything := q.take()
	if everything {
		if err := t.tellAll(conn, p, q.version); err != nil {
			return err
		}
	}
	for _, telling := range tellings {
		if err := write(conn, telling.frame); err != nil {
			return err
		}
		p.toldFlows.Add(uint64(telling.flows))
	}
	return nil
}

func (t *teller) tellAll(conn net.Conn, p *peer, v version) error {
	var broken error
	room := mostFresh
	if v == unclassed {
		room = 0 // the other one would keep them as long as any
	}
	err := t.memory.RememberedFlows(func(some []model.RememberedFlow) bool {
		for _, telling := range tellingsOf(fewFresh(some, &room), v) {
			if broken = write(conn, telling.frame); broken != nil {
				return false
			}
			p.toldFlows.Add(uint64(telling.flows))
		}
		return true
	})
	if err = errors.Join(err, broken); err != nil {
		return err
	}
	p.toldAll.Add(1)
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
			pause(ctx, firstPause)
			continue
		}
		from, is := s.fromGroup(conn.RemoteAddr())
		if !is {
			s.strangers.Add(1)
			conn.Close()
			continue
		}
		known := s.door.enter(from, conn)
		s.running.Go(func() { s.entertain(ctx, conn, known) })
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

// entertain tells a director that has dialed, if it is of the group. known is called when its
// handshake has ended.
func (s *Sync) entertain(ctx context.Context, raw net.Conn, known func()) {
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	defer raw.Close()
	conn := tls.Server(raw, s.secure(func(fingerprint string) bool { return s.peerOf(fingerprint) != nil }))
	hello, cancel := context.WithTimeout(ctx, handshakeTime)
	err := conn.HandshakeContext(hello)
	cancel()
	known()
	if err != nil {
		s.strangers.Add(1)
		s.log.Debug("refused who wants to be told of flows", "from", raw.RemoteAddr(), "error", err)
		return
	}
	fingerprint := fingerprintOf(conn.ConnectionState().PeerCertificates[0].Raw)
	p := s.peerOf(fingerprint)
	if p == nil {
		return // it has left the group meanwhile
	}
	p.knock(fingerprint)
	leave := p.enter(raw)
	defer leave()
	s.log.Info("director of the group is told of flows", "director", p.address)
	err = s.teller.tell(ctx, conn, p)
	if ctx.Err() == nil {
		s.log.Info("director of the group is not told of flows any more", "director", p.address, "error", err)
	}
}
