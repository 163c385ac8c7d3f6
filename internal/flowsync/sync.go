package flowsync

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
)

// Memory is a director's memory of flows.
type Memory interface {
	// FollowFlows hands out flows as they become known, until the context ends. unshared says that
	// something may be missing before them, as before the first call.
	FollowFlows(ctx context.Context, take func(news model.FlowNews, unshared bool)) error
	// RememberedFlows hands out all flows, some at a time, while take returns true.
	RememberedFlows(take func(some []model.RememberedFlow) bool) error
	// SharedNATFlows does the same for flows of full NAT, with those of other directors.
	SharedNATFlows(take func(some []model.NATFlow) bool) error
	// Remember takes over what another director has shared.
	Remember(flows []model.RememberedFlow) error
	// RememberNAT does the same for flows of full NAT.
	RememberNAT(flows []model.NATFlow) error
	// FreshResets returns how many fresh flows of each service were reset in the last minute.
	FreshResets() []model.ServiceResets
	// HearResets takes these counts of another director, in place of its earlier ones.
	HearResets(director netip.Addr, resets []model.ServiceResets)
}

// Sync is a director's part in the group.
type Sync struct {
	log         *slog.Logger
	identities  Identities
	certificate tls.Certificate
	publisher   publisher
	handshakes  handshakes
	strangers   atomic.Uint64 // hosts that dialed and are not of the group

	mu      sync.Mutex
	peers   []*peer // in the order of their addresses
	own     []netip.Addr
	port    uint16
	stop    context.CancelFunc
	running sync.WaitGroup

	listening    sync.Mutex
	notListening map[netip.AddrPort]error // why this director cannot listen there
}

// New makes a key for this process, and does not connect yet.
func New(memory Memory, identities Identities, log *slog.Logger) (*Sync, error) {
	certificate, err := newCertificate()
	if err != nil {
		return nil, err
	}
	return &Sync{
		log: log, identities: identities, certificate: certificate, handshakes: handshakes{waiting: map[netip.Addr][]net.Conn{}},
		publisher: publisher{memory: memory, log: log, queues: map[*queue]bool{}}, stop: func() {},
	}, nil
}

// Fingerprint is the fingerprint by which the others know this director.
func (s *Sync) Fingerprint() string { return fingerprintOf(s.certificate.Certificate[0]) }

// Set says which addresses of the group are this director's and the others', and the port of all. A
// director does not connect to itself, nor to others if it is not of the group.
func (s *Sync) Set(own, others []netip.Addr, port uint16) {
	own, others = slices.SortedFunc(slices.Values(own), netip.Addr.Compare), slices.SortedFunc(slices.Values(others), netip.Addr.Compare)
	if len(own) == 0 || port == 0 {
		own, others, port = nil, nil, 0
	}
	s.mu.Lock()
	same := slices.Equal(own, s.own) && port == s.port && slices.EqualFunc(others, s.peers, func(a netip.Addr, p *peer) bool { return a == p.address })
	if same {
		s.mu.Unlock()
		return
	}
	s.stop()
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	s.stop, s.own, s.port, s.peers = cancel, own, port, nil
	for _, a := range others {
		s.peers = append(s.peers, newPeer(a))
	}
	for _, p := range s.peers {
		s.running.Go(func() { s.subscribe(ctx, p, port) })
	}
	if len(others) == 0 {
		return
	}
	for _, a := range own {
		s.running.Go(func() { s.listen(ctx, netip.AddrPortFrom(a, port)) })
	}
}

// Await waits until every other director has shared all that it remembers, or has shown that it has
// nothing to share, or the context ends. It returns the directors that are missing then.
func (s *Sync) Await(ctx context.Context) (missing []netip.Addr) {
	s.mu.Lock()
	peers := s.peers
	s.mu.Unlock()
	for _, p := range peers {
		select {
		case <-p.first:
		case <-ctx.Done():
			select {
			case <-p.first:
			default:
				missing = append(missing, p.address)
			}
		}
	}
	return missing
}

// Close ends all connections.
func (s *Sync) Close() {
	s.Set(nil, nil, 0)
	s.publisher.close()
}

// peerOf is the director that has a certificate; nil: none of the group.
func (s *Sync) peerOf(fingerprint string) *peer {
	s.mu.Lock()
	peers := s.peers
	s.mu.Unlock()
	for _, p := range peers {
		if f, known := s.identities.Fingerprint(p.address); known && f == fingerprint {
			return p
		}
	}
	return nil
}

// Status returns the state of each of the other directors.
func (s *Sync) Status() (list []model.PeerStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		list = append(list, p.status())
	}
	return list
}

// Strangers is how many hosts have dialed that are not of the group, or could not show that they
// are.
func (s *Sync) Strangers() uint64 { return s.strangers.Load() }

// peer is another director of the group.
type peer struct {
	address netip.Addr
	first   chan struct{} // is closed when it has shared everything once, or has nothing to share
	dials   chan struct{} // is sent to when it has dialed: it is there

	heard       atomic.Uint64 // flows
	garbage     atomic.Uint64 // how often it could not be understood
	sharedFlows atomic.Uint64
	sharedAll   atomic.Uint64 // how often everything was shared with it
	dropped     atomic.Uint64 // how often it was too slow

	mu          sync.Mutex
	once        bool
	hearsFrom   time.Time // since when it shares flows with this director; zero: it does not
	hearing     net.Conn  // the connection by which it shares
	hears       string    // the fingerprint that it has shown there
	subscriber  net.Conn  // the connection by which flows are shared with it
	sharedSince time.Time // since when
	problem     string
}

func newPeer(address netip.Addr) *peer {
	return &peer{address: address, first: make(chan struct{}), dials: make(chan struct{}, 1)}
}

func (p *peer) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.once {
		p.once = true
		close(p.first)
	}
}

// awaited says that the peer has not shared everything yet, as far as that is known.
func (p *peer) awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.once
}

func (p *peer) noteShares() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hearsFrom, p.problem = time.Now().Truncate(time.Second), ""
}

// connected notes the connection by which the peer shares.
func (p *peer) connected(conn net.Conn, fingerprint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hearing, p.hears = conn, fingerprint
}

// dialed says that a process with this fingerprint is there. An earlier process will share no more
// than it has shared.
func (p *peer) dialed(fingerprint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hearing != nil && p.hears != fingerprint {
		p.hearing.Close()
	}
	select {
	case p.dials <- struct{}{}:
	default:
	}
}

func (p *peer) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hearsFrom, p.hearing, p.problem = time.Time{}, nil, err.Error()
}

// enter notes the connection by which flows are shared with the peer. An earlier connection is of a process that
// has ended, and is closed.
func (p *peer) enter(conn net.Conn) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subscriber != nil {
		p.subscriber.Close()
	}
	p.subscriber, p.sharedSince = conn, time.Now().Truncate(time.Second)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.subscriber == conn {
			p.subscriber, p.sharedSince = nil, time.Time{}
		}
	}
}

func (p *peer) status() model.PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return model.PeerStatus{
		Director: p.address, Shares: p.hearsFrom, Listens: p.sharedSince, Heard: p.heard.Load(), Shared: p.sharedFlows.Load(),
		Everything: p.sharedAll.Load(), Slow: p.dropped.Load(), Garbage: p.garbage.Load(), Problem: p.problem,
	}
}
