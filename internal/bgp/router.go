package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// The times for finding the router on an interface, and for being found by it. RFC 4861 has longer
// ones (10.): they are for many hosts on a link, but here two ends wait for each other.
const (
	advertiseSoon = time.Second      // between advertisements without a session
	advertise     = 10 * time.Second // between advertisements with a session
	advertiseGap  = 500 * time.Millisecond

	// routerStays is how long another router's advertisement is ignored after one was found: the
	// found router has that long to answer. Else hosts that advertise themselves in turns would
	// cause a line of the log, a connection and a BFD session with each packet.
	routerStays = 5 * time.Second
)

var (
	allNodes   = netip.MustParseAddr("ff02::1")
	allRouters = netip.MustParseAddr("ff02::2")
)

// errNobody says that there is no router to connect to on an interface.
var errNobody = errors.New("no router has advertised itself (RFC 4861) on the interface yet")

// errFound says that there is a router now.
var errFound = errors.New("a router has advertised itself on the interface")

// discovery looks for the router on an interface. The speaker's mutex guards it.
type discovery struct {
	end     context.CancelFunc
	address netip.Addr // the router's, the interface its zone; zero: there is none yet
	found   time.Time  // when that was
	problem error      // why it cannot be looked for
}

// discover sets the discoveries to the interfaces by which neighbors are known. The mutex is held.
func (s *Speaker) discover() {
	wanted := map[string]bool{}
	for i := range s.config.Neighbors {
		if name := s.config.Neighbors[i].Interface; name != "" {
			wanted[name] = true
		}
	}
	for name, d := range s.discoveries {
		if !wanted[name] {
			d.end()
			delete(s.discoveries, name)
		}
	}
	for name := range wanted {
		if s.discoveries[name] == nil {
			ctx, cancel := context.WithCancel(context.Background())
			d := &discovery{end: cancel}
			s.discoveries[name] = d
			s.running.Go(func() { s.seek(ctx, d, name) })
		}
	}
}

// resolved returns a neighbor of the configuration with its current address. The mutex is held.
func (s *Speaker) resolved(n *model.BGPNeighbor) model.BGPNeighbor {
	at := *n
	if d := s.discoveries[n.Interface]; n.Interface != "" && d != nil {
		at.Address = d.address
	}
	return at
}

// seek looks for a router until the context ends.
func (s *Speaker) seek(ctx context.Context, d *discovery, name string) {
	for ctx.Err() == nil {
		err := s.exchange(ctx, d, name)
		if ctx.Err() != nil {
			return
		}
		s.note(d, name, netip.Addr{}, err)
		retry.Sleep(ctx, time.Second)
	}
}

// exchange advertises this director on an interface, so that a router that also knows its neighbor
// by the interface finds it, and hears which router is there, until there is an error.
func (s *Speaker) exchange(ctx context.Context, d *discovery, name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("there is no interface %s", name)
	}
	conn, own, err := ndp.Listen(link, ndp.LinkLocal)
	if err != nil {
		return fmt.Errorf("listen for routers on %s (it needs a link-local address): %w", name, systemError(err))
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := listenForRouters(conn); err != nil {
		return fmt.Errorf("listen for routers on %s: %w", name, systemError(err))
	}
	s.note(d, name, netip.Addr{}, nil)
	var sent time.Time
	soon := true // a router asks
	for packet := make([]byte, 1500); ; {
		settled := s.settled(name)
		wait := advertiseSoon
		if settled && !soon {
			wait = advertise
		} else if soon {
			wait = advertiseGap
		}
		if time.Since(sent) >= wait {
			if now, err := net.InterfaceByName(name); err != nil || now.Index != link.Index {
				return fmt.Errorf("there is no interface %s any more, or it is another one", name)
			}
			sent, soon = time.Now(), false
			advertiseSelf(conn, link, !settled)
			continue
		}
		if err := conn.SetReadDeadline(sent.Add(wait)); err != nil {
			return err
		}
		n, control, from, err := conn.ReadRaw(packet)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return fmt.Errorf("listen for routers on %s: %w", name, systemError(err))
		case from.WithZone("") == own.WithZone(""): // multicasts come back to their sender
		case n == 0 || control == nil || control.HopLimit != ndp.HopLimit: // a router has forwarded it
		case packet[0] == byte(ipv6.ICMPTypeRouterSolicitation):
			soon = true
		case packet[0] == byte(ipv6.ICMPTypeRouterAdvertisement) && from.IsLinkLocalUnicast():
			s.note(d, name, from, nil)
		}
	}
}

func listenForRouters(conn *ndp.Conn) error {
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
	filter.Accept(ipv6.ICMPTypeRouterSolicitation)
	return errors.Join(conn.SetICMPFilter(&filter), conn.JoinGroup(allNodes), conn.JoinGroup(allRouters),
		conn.SetControlMessage(ipv6.FlagHopLimit, true))
}

// advertiseSelf advertises this director, as a router that is no default router, and solicits other routers.
// A packet that cannot be sent, as on a link that is down, is sent later.
func advertiseSelf(conn *ndp.Conn, link *net.Interface, solicit bool) {
	own := []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: link.HardwareAddr}}
	_ = conn.WriteTo(&ndp.RouterAdvertisement{Options: own}, nil, allNodes)
	if solicit {
		_ = conn.WriteTo(&ndp.RouterSolicitation{Options: own}, nil, allRouters)
	}
}

// settled reports whether there is a session with the router on an interface.
func (s *Speaker) settled(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.sessions[name]
	return one != nil && one.isEstablished()
}

// note remembers which router is on an interface (zero: the known one), or why that cannot be found
// out. While there is a session with one, another router is ignored.
func (s *Speaker) note(d *discovery, name string, router netip.Addr, problem error) {
	s.mu.Lock()
	one := s.sessions[name]
	if !router.IsValid() {
		router = d.address
	}
	if router != d.address && time.Since(d.found) < routerStays {
		router = d.address
	}
	same := router == d.address && fmt.Sprint(problem) == fmt.Sprint(d.problem)
	if s.closed || s.discoveries[name] != d || one == nil || same || router != d.address && one.isEstablished() {
		s.mu.Unlock()
		return
	}
	if router != d.address {
		one.log.Info("BGP router found on an interface", "router", router)
		d.found = time.Now()
	}
	d.address, d.problem = router, problem
	for i := range s.config.Neighbors {
		if n := &s.config.Neighbors[i]; n.Interface == name {
			one.set(s.want(n))
		}
	}
	routers := map[string]netip.Addr{}
	for name, d := range s.discoveries {
		routers[name] = d.address
	}
	s.mu.Unlock()
	if s.meet != nil {
		s.meet(maps.Clone(routers))
	}
}

// find waits until there is a router to connect to, and says why there is none.
func (s *session) find(ctx context.Context, w *want) error {
	for {
		if w.neighbor.Address.IsValid() {
			return errFound
		}
		problem := errNobody
		if w.seeking != nil {
			problem = local{w.seeking}
		}
		s.problem(problem)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.wake:
			w = s.now.Load()
		}
	}
}

func (s *session) isEstablished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status.State == model.SessionEstablished
}
