package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// The pauses between connections: the first, the longest if the neighbor is not reached, and the
// longest if it is reached but does not agree. A session that has lasted this long does not count
// as a failure.
const (
	firstPause  = 100 * time.Millisecond
	lastPause   = 2 * time.Second
	refusePause = 10 * time.Second
	lostPause   = time.Second // after BFD has found the way lost: the neighbor has to notice it, too
	lasted      = 10 * time.Second
)

// session is the connection with one neighbor, again and again. One goroutine, the one in run, owns
// it; the mutex protects what other goroutines read.
type session struct {
	now      atomic.Pointer[want]
	wake     chan struct{} // now has changed
	log      *slog.Logger
	end      context.CancelCauseFunc
	incoming chan *net.TCPConn // from a passive neighbor's address
	before   net.Conn          // a connection that came during another one
	logged   map[string]bool   // problems that were logged since the last session
	began    bool              // a session has been established since the process started
	table    *evpnTable        // takes what the neighbor tells of EVPN

	mu sync.Mutex
	// disagreement is why the last connection on which both sides talked has ended, if none has
	// been established since.
	disagreement string
	again        context.CancelCauseFunc // ends an attempt whose want has changed
	status       model.BGPNeighborStatus
	advertised   map[netip.Prefix]bool // prefixes that were advertised to the neighbor
	evpn         int                   // EVPN routes that were advertised to it
	lacksEVPN    string                // why there is no EVPN in an established session
}

func newSession(w *want, table *evpnTable, end context.CancelCauseFunc, log *slog.Logger) *session {
	s := &session{wake: make(chan struct{}, 1), log: log, end: end, table: table,
		incoming: make(chan *net.TCPConn, 1), logged: map[string]bool{}}
	s.now.Store(w)
	s.state(model.SessionConnecting)
	return s
}

// errChanged says that the session has to be opened anew, because what both sides said in the
// beginning has changed.
var errChanged = errors.New("its configuration has changed")

// errBack says that a session that BFD has held back may be opened again.
var errBack = errors.New("this director's datapath is back")

// mismatch returns why a connection that was made for one want does not suit the next.
func mismatch(before, next *want) error {
	if err := next.path.lost(before.path); err != nil {
		return err
	}
	switch {
	case next.path.held == "" && before.path.held != "":
		return errBack
	case !sameSession(before, next):
		return errChanged
	}
	return nil
}

// set gives the session a new want: on the same connection, if possible.
func (s *session) set(next *want) {
	s.mu.Lock()
	why := mismatch(s.now.Swap(next), next)
	again := s.again
	s.mu.Unlock()
	if why != nil && again != nil {
		again(why)
	}
	s.rouse()
}

// rouse has the session look at what it has to do now.
func (s *session) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it has not seen the previous wake yet
	}
}

// attempt returns what a connection is for, and a context that ends when that changes.
func (s *session) attempt(ctx context.Context) (context.Context, *want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again != nil {
		s.again(nil)
	}
	ctx, s.again = context.WithCancelCause(ctx)
	return ctx, s.now.Load()
}

// run keeps the session up until the context ends.
func (s *session) run(ctx context.Context) {
	defer s.closeWaiting()
	for pause := time.Duration(0); ctx.Err() == nil; {
		began := time.Now()
		attempt, w := s.attempt(ctx)
		err := s.connectOnce(attempt, w)
		s.lost(ctx, err)
		pause = after(err, time.Since(began), pause, w.neighbor.Passive)
		if endedByBFD(err) {
			rest(ctx, pause) // news from BFD does not make it shorter
		} else {
			rest(attempt, pause)
		}
	}
}

// after returns the pause after a connection, by why it has ended, how long it lasted, and the
// pause before it.
func after(err error, there, before time.Duration, passive bool) time.Duration {
	switch {
	case endedByBFD(err):
		return lostPause
	case errors.Is(err, errChanged) || errors.Is(err, errBack) || errors.Is(err, errFound) || passive:
		return 0 // a passive neighbor makes its own pauses
	case there > lasted:
		return firstPause
	}
	return longer(before, err)
}

// closeWaiting closes waiting connections that will not be used.
func (s *session) closeWaiting() {
	if s.before != nil {
		_ = s.before.Close()
	}
	select {
	case conn := <-s.incoming:
		_ = conn.Close()
	default:
	}
}

// longer returns the pause after another failure.
func longer(pause time.Duration, err error) time.Duration {
	limit := lastPause
	if f := (*fault)(nil); errors.As(err, &f) {
		limit = refusePause
	}
	return min(max(2*pause, firstPause), limit)
}

// rest waits, up to a quarter longer, so that neighbors are not all asked at once.
func rest(ctx context.Context, pause time.Duration) {
	if pause == 0 {
		return
	}
	retry.Sleep(ctx, pause+rand.N(pause/4))
}

// connectOnce is one connection, from its beginning to its end.
func (s *session) connectOnce(ctx context.Context, w *want) error {
	if w.path.held != "" {
		return s.wait(ctx, w)
	}
	if !w.neighbor.Address.IsValid() {
		return s.find(ctx, w)
	}
	conn, err := s.connect(ctx, w)
	if err != nil {
		return err
	}
	defer conn.Close()
	s.state(model.SessionOpening)
	c := &connection{conn}
	opening, agreed := s.untilAnother(ctx)
	peer, err := open(opening, c, w, !s.began)
	agreed()
	if err != nil {
		return c.refuse(err)
	}
	if s.before != nil { // it came too late
		_ = s.before.Close()
		s.before = nil
	}
	s.began = true
	s.established(w, peer, conn)
	feed := s.begin(w, peer)
	err = s.advertise(ctx, c, w, peer, feed)
	if feed != nil {
		feed.finish(peer.keepsAfter(err))
	}
	return c.refuse(err)
}

// begin begins to take what the neighbor tells of EVPN; nil: that is nothing.
func (s *session) begin(w *want, p *peer) *evpnFeed {
	if !slices.Contains(p.families, model.BGPEVPN) {
		s.table.forget(w.neighbor.Name())
		return nil
	}
	return s.table.begin(evpnPeer{name: w.neighbor.Name(), internal: w.neighbor.ASN == w.asn, routerID: p.routerID,
		refreshes: p.refreshes, ends: p.restarts, resumes: p.evpnResumes})
}

// untilAnother returns a context for a connection on which both sides have not agreed yet. It ends
// when the neighbor opens another connection, which is the next one then: one that says nothing does
// not keep the neighbor waiting. done has to be called when both sides have agreed, or will not.
func (s *session) untilAnother(ctx context.Context) (opening context.Context, done func()) {
	opening, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case again := <-s.incoming:
			s.before = again
			cancel(errReplaced)
		case <-opening.Done():
		}
	}()
	return opening, func() {
		cancel(nil)
		<-ended
	}
}

// wait waits while there must be no session, because this director would not forward what routers
// send here, and says so.
func (s *session) wait(ctx context.Context, w *want) error {
	s.problem(fmt.Errorf("what its routes stand for is not there (BFD: %s)", w.path.held))
	for {
		select {
		case conn := <-s.incoming:
			_ = conn.Close()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sameSession reports whether the same connection suits both: what is advertised on it may differ.
func sameSession(a, b *want) bool {
	one, other := a.neighbor, b.neighbor
	one.Attributes, other.Attributes = model.BGPAttributes{}, model.BGPAttributes{}
	one.NextHop, other.NextHop = nil, nil
	one.Segment, other.Segment = model.Segment{}, model.Segment{}
	if one.Interface != "" && one.Interface == other.Interface {
		one.Address, other.Address = netip.Addr{}, netip.Addr{} // another router is found only without a session
	}
	one.BFD, other.BFD = nil, nil
	return a.asn == b.asn && a.routerID == b.routerID && reflect.DeepEqual(one, other)
}
