// Package bgp tells routers which VIPs this director forwards. A [Speaker] keeps a session with
// each neighbor of the configuration and tells it the routes that it is set to. It does not keep
// the prefixes that routers announce, because a director forwards to its backends by the host's own
// routes. In overlays it tells other VTEPs who is at this director, and learns who is at them (EVPN,
// RFC 7432).
//
// Messages are read and written by gobgp's packet package. The sessions are weir's own:
// docs/decisions/bgp.md says why.
package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// Why a speaker ends sessions on purpose.
var (
	errRemoved = errors.New("it is not in the configuration any more")
	errStopped = errors.New("this director's process ends")
	errDrained = errors.New("this director has drained")
)

// Speaker keeps the sessions with all neighbors.
type Speaker struct {
	log     *slog.Logger
	port    uint16 // that it listens at
	running sync.WaitGroup

	mu        sync.Mutex
	config    model.BGP
	routes    []model.Route
	phase     phase
	bfd       model.BFDStatus // the last status
	closed    bool
	evpn      evpnState
	sessions  map[string]*session // by the names of their neighbors
	listeners map[listens]*listener

	discoveries map[string]*discovery // by interface
	meet        func(map[string]netip.Addr)
}

// phase is how far a draining director has come.
type phase uint8

const (
	announced phase = iota
	marked          // with the community graceful-shutdown
	withdrawn
)

// New returns a speaker that has no neighbors. Function meet, unless it is nil, is called with the
// routers that are found on interfaces, whenever they change; it must not call the speaker.
func New(meet func(map[string]netip.Addr), log *slog.Logger) *Speaker {
	return &Speaker{log: log, meet: meet, port: model.DefaultBGPPort, sessions: map[string]*session{}, listeners: map[listens]*listener{},
		discoveries: map[string]*discovery{}, evpn: newEVPNState()}
}

// Set replaces the neighbors with which sessions are kept, and the routes that are advertised to them. It
// does not wait: routes are sent, and connections made, in the background.
func (s *Speaker) Set(config model.BGP, routes []model.Route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	another := config.ASN != s.config.ASN || config.RouterID != s.config.RouterID
	s.config, s.routes = config, routes
	if another {
		s.importEVPN()
		s.reviseEVPN(s.evpn.table.choose(s.evpn.own))
	}
	s.reconcile()
}

// Withdraw withdraws the routes while the sessions go on: they are first marked for a time, so that
// routers that have other routes use those, and then withdrawn. Routes that are set later are not
// told.
func (s *Speaker) Withdraw(mark time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.phase = withdrawn
	if mark > 0 {
		s.phase = marked
		time.AfterFunc(mark, s.withdrawMarked)
	}
	s.reconcile()
}

func (s *Speaker) withdrawMarked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.phase != marked {
		return
	}
	s.phase = withdrawn
	s.reconcile()
}

// Resume announces again what Withdraw withdrew.
func (s *Speaker) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.phase == announced {
		return
	}
	s.phase = announced
	s.reconcile()
}

// Close ends all sessions. Routers keep the routes for their restart-time, because the
// datapath goes on; after Withdraw they are told that the director is gone.
func (s *Speaker) Close() {
	s.mu.Lock()
	why := errStopped
	if s.phase != announced {
		why = errDrained
	}
	if !s.closed {
		close(s.evpn.done)
	}
	s.closed = true
	s.evpn.table.close()
	for _, one := range s.sessions {
		one.end(why)
	}
	for _, l := range s.listeners {
		l.close()
	}
	for _, d := range s.discoveries {
		d.end()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// reconcile opens and closes sessions and listeners as set. The mutex is held.
func (s *Speaker) reconcile() {
	neighbors := s.config.Neighbors
	wanted := make(map[string]bool, len(neighbors))
	for i := range neighbors {
		wanted[neighbors[i].Name()] = true
	}
	for name, one := range s.sessions {
		if !wanted[name] {
			one.end(errRemoved)
			delete(s.sessions, name)
			s.evpn.table.forget(name)
		}
	}
	s.discover()
	for i := range neighbors {
		w := s.want(&neighbors[i])
		if one := s.sessions[neighbors[i].Name()]; one != nil {
			one.set(w)
			continue
		}
		s.startSession(w)
	}
	s.listen()
}

// want returns what the session with a neighbor has to do now. The mutex is held.
func (s *Speaker) want(n *model.BGPNeighbor) *want {
	at := s.resolved(n)
	w := &want{asn: s.config.ASN, routerID: s.config.RouterID, neighbor: at, routes: s.routes, evpn: s.evpn.own.routes, phase: s.phase,
		path: pathOf(&at, &s.bfd)}
	if d := s.discoveries[n.Interface]; d != nil {
		w.seeking = d.problem
	}
	return w
}

// startSession starts a session.
func (s *Speaker) startSession(w *want) {
	ctx, cancel := context.WithCancelCause(context.Background())
	one := newSession(w, s.evpn.table, cancel, s.log.With("neighbor", w.neighbor.Name(), "asn", w.neighbor.ASN))
	s.sessions[w.neighbor.Name()] = one
	s.running.Go(func() {
		defer cancel(nil)
		one.run(ctx)
	})
}

// want is what a session has to do.
type want struct {
	asn      uint32
	routerID netip.Addr
	neighbor model.BGPNeighbor
	routes   []model.Route
	evpn     []evpnOwnRoute
	phase    phase
	path     path
	seeking  error // why the neighbor on an interface cannot be looked for
}
