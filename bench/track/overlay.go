package track

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/traffic"
)

// The director's VTEP is the balancer's address on the side of the source, whose own one is the VTEP of all that it
// sends. VTEPs of backends are behind a router.
var (
	ownVTEP    = map[bool]netip.Addr{false: netip.MustParseAddr("10.0.0.1"), true: netip.MustParseAddr("fd00::1")}
	sourceVTEP = map[bool]netip.Addr{false: netip.MustParseAddr("10.0.0.2"), true: netip.MustParseAddr("fd00::2")}
	vtepRouter = map[bool]netip.Addr{false: netip.MustParseAddr("10.1.254.1"), true: netip.MustParseAddr("fd00:1::2:1")}
)

const firstVNI = 5001

// InTunnels is a tunnel of that kind from the source's VTEP to the balancer's, for as many tenants.
func InTunnels(kind model.SegmentKind, outer6 bool, tenants int) traffic.Overlay {
	return traffic.Overlay{Kind: kind, IPv6: outer6, VNI: firstVNI, From: sourceVTEP[outer6], To: ownVTEP[outer6], Tenants: tenants}
}

// InOverlay returns the same with backends in a tenant's network, each at a VTEP of its own. Traffic comes from such
// a network, too, maybe of the other kind.
func (s Subject) InOverlay(kind model.SegmentKind, outer6 bool) Subject {
	s.overlay, s.vtep = traffic.Overlay{Kind: kind, IPv6: outer6}, true
	s.Name = fmt.Sprintf("%s to %v", s.Name, traffic.Overlay{Kind: kind, IPv6: outer6})
	return s
}

// OnVTEP returns the same on a director that is a VTEP.
func (s Subject) OnVTEP() Subject {
	s.Name, s.vtep = s.Name+" on a VTEP", true
	return s
}

// arrives is the tunnel in which packets come to backends. The tenants' networks have the same numbers in both
// kinds.
func (o Options) arrives() traffic.Overlay {
	from := o.Traffic.Overlay
	if o.Subject.shape == traffic.Bare || !o.Subject.overlay.Given() {
		return from
	}
	to := o.Subject.overlay
	to.VNI, to.Tenants = from.VNI, from.Tenants
	return to
}

// connectVTEPs leads to the VTEPs of backends.
func (t *Track) connectVTEPs() {
	if !t.Subject.overlay.Given() {
		return
	}
	for six, network := range map[bool]netip.Prefix{false: traffic.VTEPs4, true: traffic.VTEPs6} {
		t.balancer.Neighbor(t.out.Name, vtepRouter[six].String(), routerMAC)
		t.balancer.Route(network.String(), vtepRouter[six].String())
	}
}

// routerMAC is that of the router before the VTEPs, which is not there.
var routerMAC = traffic.OverlayMAC

// overlay makes the director of a configuration a VTEP.
func (t *Track) overlay(c *model.Config) {
	if !t.Subject.vtep {
		return
	}
	c.Director.VTEP = model.VTEP{Addresses: []netip.Addr{ownVTEP[false], ownVTEP[true]}}
	for _, a := range sourceVTEP {
		c.Director.VTEP.Peers = append(c.Director.VTEP.Peers, netip.PrefixFrom(a, a.BitLen()))
	}
	if !t.Traffic.Overlay.Given() {
		return
	}
	for tenant := range t.Traffic.Tenants() {
		in := t.Traffic.SegmentOf(tenant)
		c.Segments = append(c.Segments, model.SegmentSettings{ID: in, MAC: model.MAC(traffic.OverlayMAC)})
		if to := t.arrives().Segment(tenant); to != in {
			c.Segments = append(c.Segments, model.SegmentSettings{ID: to, MAC: model.MAC(traffic.OverlayMAC)})
		}
	}
}

// inTenant makes a service a tenant's.
func (t *Track) inTenant(s *model.Service, tenant, first int) {
	if t.Traffic.Tenants() > 1 {
		s.Name = fmt.Sprintf("%s-of%d", s.Name, tenant)
	}
	s.Segment = t.Traffic.SegmentOf(tenant)
	if !t.Subject.overlay.Given() {
		return
	}
	to := t.arrives()
	segment := to.Segment(tenant)
	for i := range s.Backends {
		b, n := &s.Backends[i], first+i
		b.MAC = model.MAC(traffic.BackendMAC(n))
		b.VTEP = traffic.VTEP(tenant, n, t.moved[n], to.IPv6)
		if segment != s.Segment {
			b.Segment = &segment
		}
	}
}

// Move is what a backend's move to another VTEP was.
type Move struct {
	// Followed is how long after the new file packets came to the new VTEP, and only there.
	Followed time.Duration
	Late     uint64 // packets that came to the old one after the first to the new one
}

const (
	movePatience = 10 * time.Second
	moveLook     = 200 * time.Microsecond
	// moveQuiet is how long nothing has to come to the old VTEP.
	moveQuiet = 20 * time.Millisecond
)

// ErrNotMoved says that packets did not follow a backend.
var ErrNotMoved = errors.New("no packet came to the new VTEP")

// MoveBackend gives a backend its other VTEP, in the director's file, and waits until packets follow, which needs
// [Options.Moves]. Packets to the backend must be under way.
func (t *Track) MoveBackend(ctx context.Context, backend int) (move Move, err error) {
	look := func() (old, new uint64, err error) {
		home, away, err := t.sink.Moved(backend)
		if !t.moved[backend] { // before: it comes home
			return away, home, err
		}
		return home, away, err
	}
	t.moved[backend] = !t.moved[backend]
	lastOld, before, err := look()
	if err != nil {
		return move, err
	}
	if err := t.director.Prepare(t.config(t.set)); err != nil {
		return move, err
	}
	began := time.Now()
	if err := t.director.Commit(); err != nil {
		return move, err
	}
	var since time.Time // of the last news
	for followed := false; !followed || time.Since(since) < moveQuiet; {
		old, new, err := look()
		switch now := time.Now(); {
		case err != nil:
			return move, err
		case ctx.Err() != nil:
			return move, ctx.Err()
		case new > before && !followed:
			followed, since = true, now
		case followed && old > lastOld:
			move.Late += old - lastOld
			since = now
		case now.Sub(began) > movePatience:
			return move, fmt.Errorf("%w in %v", ErrNotMoved, movePatience)
		}
		lastOld = old
		time.Sleep(moveLook) // between two looks
	}
	move.Followed = since.Sub(began)
	return move, nil
}

// moveSends is how long a source sends before it is asked whether that is enough.
const moveSends = 50 * time.Millisecond

// While sends at a rate, in packets per second, as long as a function runs.
func (s *Stream) While(rate float64, run func() error) error {
	if err := s.source.Pace(rate, traffic.FewFrames); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- run() }()
	for {
		if _, err := s.source.Send(max(int(rate*moveSends.Seconds()), traffic.FullPoll)); err != nil {
			return errors.Join(err, <-done)
		}
		select {
		case err := <-done:
			_, wrong := s.track.settled()
			return errors.Join(err, wrong, s.source.Pace(0, traffic.FullPoll))
		default:
		}
	}
}
