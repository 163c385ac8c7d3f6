// Package neighbor answers for VIPs on links where no router is told of them: hosts on the link ask
// by ARP (RFC 826) and NDP (RFC 4861) for a VIP, and get this director's address; hosts that have
// another director's are told without asking.
//
// The VIPs are on no interface: packets for them are the datapath's. So the kernel does not answer,
// and packet sockets behind XDP read the questions.
//
// In a group one director answers for each VIP; the group's [Registry] says which, until the
// director's lease ends. A director looks at its own clock before every frame: one that cannot
// prolong its lease is silent before it ends, and before another one can have the VIP. Which
// director should have which VIP is a pure function of the registry ([plan]).
package neighbor

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// Lease is the lease by which a director of a group answers.
type Lease interface {
	// Renew prolongs the lease, or begins one, and returns how long it lasts from the call on.
	Renew(ctx context.Context) (time.Duration, error)
	// Leave ends the lease, and with it all that the director owns. It is the last call.
	Leave(ctx context.Context) error
}

// Registry is where the directors of a group write which of them answers for which VIP. An entry
// ends with the lease of its writer.
type Registry interface {
	Lease
	// Group returns what is known now. It does not wait.
	Group() model.NeighborGroup
	// Offer says for which VIPs this director could answer, in order, and which of them are its own
	// addresses of full NAT.
	Offer(ctx context.Context, vips []model.VIP, home []netip.Addr) error
	// Move makes this director the owner of VIPs that have none, and gives up others.
	Move(ctx context.Context, claim, release []model.VIP) error
}

// Join makes this director, known by its address, a member of the group. notify is called when what
// the group knows has changed; it does not wait.
type Join func(self netip.Addr, lease time.Duration, notify func()) Registry

// Speaker answers for VIPs.
type Speaker struct {
	log   *slog.Logger
	join  Join // nil: there is no group
	guard *guard
	wake  chan struct{}
	stop  context.CancelFunc
	ended chan struct{}

	mu      sync.Mutex
	set     want
	claimed map[model.VIP]mac // VIPs that another host has claimed since the last turn
	alarms  *limiter          // of turns because of claims
	problem string            // of the lease
	last    model.NeighborStatus
	counted []*station // of last
}

// want is what a speaker should do.
type want struct {
	version  int // one more with each Set
	config   model.Neighbor
	group    []netip.Addr
	vips     []model.VIP // in order, with the sources
	sources  Sources
	draining bool
}

// Sources are addresses of full NAT, which directors answer for as for VIPs in no segment. An address is its own
// director's as long as that one is there; then it is one of the directors' that go on with its flows.
type Sources struct{ Own, Others []netip.Addr }

// offered returns which of some VIPs a director offers to its group: all but addresses of other
// directors that are there. home are its own addresses among them.
func (s *Sources) offered(vips []model.VIP, self netip.Addr, homes map[netip.Addr]netip.Addr) (offers []model.VIP, home []netip.Addr) {
	for _, vip := range vips {
		a := vip.Address
		if vip.InSegment() {
			offers = append(offers, vip)
			continue
		}
		if slices.Contains(s.Own, a) {
			home = append(home, a)
		} else if of, there := homes[a]; there && of != self && slices.Contains(s.Others, a) {
			continue
		}
		offers = append(offers, vip)
	}
	return offers, home
}

// New returns a speaker that answers for nothing. Without join every VIP is its own.
func New(join Join, log *slog.Logger) *Speaker {
	ctx, cancel := context.WithCancel(context.Background())
	s := newSpeaker(join, log, bootTime)
	s.stop = cancel
	go s.run(ctx)
	return s
}

func newSpeaker(join Join, log *slog.Logger, clock func() time.Duration) *Speaker {
	return &Speaker{log: log, join: join, guard: &guard{clock: clock}, wake: make(chan struct{}, 1),
		ended: make(chan struct{}), claimed: map[model.VIP]mac{}, alarms: newLimiter(alarmsPerSecond)}
}

// Set replaces the VIPs, which are in order, that this director can answer for, on the interfaces
// that its configuration names, as the director of the group that has an address of this host. VIPs of
// segments that no interface is for, and those in none if no interface is for these, are left out. When it returns, other VIPs are no longer
// answered for.
func (s *Speaker) Set(config model.Neighbor, group []netip.Addr, vips []model.VIP, sources Sources) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.join == nil {
		sources.Others = nil // it cannot be known whether their directors are there
	}
	vips = slices.Clone(vips)
	if len(sources.Own)+len(sources.Others) > 0 {
		for _, a := range slices.Concat(sources.Own, sources.Others) {
			vips = append(vips, model.Untagged(a))
		}
		slices.SortFunc(vips, model.VIP.Compare)
		vips = slices.Compact(vips)
	}
	vips = slices.DeleteFunc(vips, func(vip model.VIP) bool { return !config.In(vip.Segment) })
	s.set = want{s.set.version + 1, config, group, vips, sources, s.set.draining}
	s.guard.only(vips)
	s.notify()
}

// Withdraw makes another director answer for all VIPs, while this one still forwards.
func (s *Speaker) Withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set.draining = true
	s.guard.only(nil)
	s.notify()
}

// Close stops answering, and gives everything up, so that another director answers at once.
func (s *Speaker) Close() {
	s.stop()
	<-s.ended
}

func (s *Speaker) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Status says which director answers for which VIP.
func (s *Speaker) Status() model.NeighborStatus {
	s.mu.Lock()
	status, stations := s.last, s.counted
	if status.Lease != "" && status.Problem == "" {
		status.Problem = s.problem
	}
	s.mu.Unlock()
	status.Interfaces = slices.Clone(status.Interfaces)
	for i, one := range stations {
		one.count(&status.Interfaces[i])
	}
	if status.Lease == model.LeaseHeld && s.guard.lapsed() {
		status.Lease = model.LeaseNone
	}
	return status
}

// alarmsPerSecond is how many turns begin early because of claims: a forger can send any number, and
// a turn looks at every VIP. Further claims wait for the next turn, which comes within a second.
const alarmsPerSecond = 1

// conflicted notes that another host has claimed a VIP.
func (s *Speaker) conflicted(vip model.VIP, with mac) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claimed[vip] = with
	if s.alarms.allow(s.guard.clock()) {
		s.notify()
	}
}

// run takes turns until the context ends.
func (s *Speaker) run(ctx context.Context) {
	defer close(s.ended)
	links := make(chan struct{}, 1)
	done := make(chan struct{})
	defer close(done)
	if err := watchLinks(links, done); err != nil {
		s.log.Warn("changes of interfaces are seen a second late", "error", err)
	}
	t := newTurn(s)
	defer t.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-links:
			t.looked = 0
		case <-timer.C:
		}
		timer.Reset(t.take(ctx))
	}
}
