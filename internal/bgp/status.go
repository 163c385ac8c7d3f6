package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// Status says what is announced to which neighbors.
func (s *Speaker) Status() model.BGPStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := model.BGPStatus{ASN: s.config.ASN, RouterID: s.config.RouterID, Draining: s.phase != announced,
		Neighbors: []model.BGPNeighborStatus{}, Routes: []model.RouteStatus{}}
	for _, a := range s.config.Listen {
		one := model.BGPListenerStatus{Address: a}
		var problems []string
		for _, at := range s.listensAt(a) {
			if l := s.listeners[at]; l != nil {
				problems = append(problems, l.problems()...)
			}
		}
		one.Problem = strings.Join(problems, "; ")
		status.Listen = append(status.Listen, one)
	}
	advertised := map[told]int{}
	for i := range s.config.Neighbors {
		one := s.sessions[s.config.Neighbors[i].Name()]
		if one == nil {
			continue
		}
		report := one.report(advertised)
		s.reportEVPN(&s.config.Neighbors[i], one, &report)
		if problem := s.whyNotConnected(&s.config.Neighbors[i]); problem != "" && report.State != model.SessionEstablished {
			report.Problem, report.Own = problem, true
		}
		status.Neighbors = append(status.Neighbors, report)
	}
	for _, r := range s.routes {
		status.Routes = append(status.Routes, model.RouteStatus{Segment: r.Segment, Prefix: r.Prefix, Attributes: r.Attributes, Neighbors: advertised[told{r.Segment, r.Prefix}]})
	}
	status.EVPN = slices.Clone(s.evpn.status)
	return status
}

// told is a prefix that neighbors of a segment were told.
type told struct {
	segment model.Segment
	prefix  netip.Prefix
}

// reportEVPN adds what goes between this director and a neighbor of EVPN, if it has that family. The mutex
// is held.
func (s *Speaker) reportEVPN(n *model.BGPNeighbor, one *session, report *model.BGPNeighborStatus) {
	if !slices.Contains(n.Families, model.BGPEVPN) {
		return
	}
	e := s.evpn.table.status(n.Name())
	one.mu.Lock()
	e.Sent = one.evpn
	lacks := one.lacksEVPN
	one.mu.Unlock()
	e.Problem = cmp.Or(lacks, e.Problem)
	report.EVPN = &e
	if e.Problem != "" && report.State == model.SessionEstablished && report.Problem == "" {
		report.Problem = e.Problem
	}
}

// whyNotConnected says why a passive neighbor cannot connect; empty: it can. The mutex is held.
func (s *Speaker) whyNotConnected(n *model.BGPNeighbor) string {
	if !n.Passive {
		return ""
	}
	problem := ""
	for _, a := range s.config.Listen {
		l := s.listeners[listens{a, n.VRF}]
		if l == nil || n.Address.Is4() != a.Is4() {
			continue
		}
		found := cmp.Or(l.problem, l.kept[n.Address])
		if found == "" {
			return "" // here it can
		}
		problem = found
	}
	return problem
}

// local is an error of this host, and not of a neighbor: what is asked for cannot be done.
type local struct{ error }

// Unwrap returns what is wrong.
func (l local) Unwrap() error { return l.error }

// report returns the session's status, and counts the prefixes that were advertised to its neighbor.
func (s *session) report(advertised map[told]int) model.BGPNeighborStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.now.Load()
	for prefix := range s.advertised {
		advertised[told{w.neighbor.Segment, prefix}]++
	}
	status := s.status
	status.Segment = w.neighbor.Segment
	if w.neighbor.BFD != nil {
		status.BFD = cmp.Or(w.path.state, "unknown")
	}
	status.Announced = len(s.advertised)
	status.Families = slices.Clone(status.Families)
	return status
}

// state begins a state in which nothing is known about the neighbor.
func (s *session) state(state model.SessionState) {
	w := s.now.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advertised, s.evpn, s.lacksEVPN = nil, 0, ""
	since := s.status.Since
	if s.status.State != state {
		since = time.Now().Truncate(time.Second)
	}
	s.status = model.BGPNeighborStatus{
		Address: w.neighbor.Address, Interface: w.neighbor.Interface, VRF: w.neighbor.VRF, Segment: w.neighbor.Segment,
		ASN: w.neighbor.ASN, State: state, Since: since,
		Families: []model.BGPFamily{}, Losses: s.status.Losses, Problem: s.status.Problem, Own: s.status.Own,
	}
}

// established notes what both sides have agreed on.
func (s *session) established(w *want, p *peer, conn net.Conn) {
	s.state(model.SessionEstablished)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.RouterID, s.status.HoldTime = p.routerID, model.Duration(p.hold)
	s.status.Families, s.status.GracefulRestart = p.families, p.restarts
	s.status.Local = addressOf(conn.LocalAddr())
	s.status.Problem, s.status.Own, s.disagreement = p.missing, false, ""
	s.lacksEVPN = p.lacksEVPN
	clear(s.logged)
	s.log.Info("BGP session established", "router-id", p.routerID, "hold-time", p.hold, "families", p.families, "graceful-restart", p.restarts)
	if p.missing != "" {
		s.log.Warn("BGP session lacks something", "problem", p.missing)
	}
}

// lost notes the end of a connection, or of an attempt. The same problem is logged once.
func (s *session) lost(ctx context.Context, err error) {
	s.mu.Lock()
	was := s.status.State
	s.status.Problem, s.status.Own = s.remembered(err), errors.As(err, new(local))
	if errors.Is(err, errBack) || errors.Is(err, errFound) {
		s.status.Problem = ""
	}
	if was == model.SessionEstablished {
		s.status.Losses++
	}
	s.mu.Unlock()
	s.state(model.SessionConnecting)
	switch {
	case ctx.Err() != nil:
		s.log.Info("BGP session ends", "reason", context.Cause(ctx))
	case errors.Is(err, errChanged), errors.Is(err, errBack), errors.Is(err, errFound):
		s.log.Info("BGP session begins again", "reason", err)
	case was == model.SessionEstablished:
		s.log.Warn("BGP session lost", "reason", err)
	default:
		s.logOnce("no BGP session yet", err)
	}
}

// remembered returns the text for an error. A neighbor that did not agree may refuse connections
// for a while: then the text says what the disagreement was, and not only that the neighbor has
// closed the connection. The mutex is held.
func (s *session) remembered(err error) string {
	if f := (*fault)(nil); errors.As(err, &f) && f.because == nil {
		s.disagreement = f.text
		return f.text
	}
	if s.disagreement == "" || errors.As(err, new(local)) {
		return err.Error()
	}
	return fmt.Sprintf("%v; when both talked last: %s", err, s.disagreement)
}

// problem notes why there is no session, without the end of a session.
func (s *session) problem(err error) {
	s.mu.Lock()
	s.status.Problem, s.status.Own = err.Error(), errors.As(err, new(local))
	s.mu.Unlock()
	s.logOnce("no BGP session yet", err)
}

// logOnce logs what follows from a problem, once between two sessions.
func (s *session) logOnce(what string, err error) {
	if !s.logged[err.Error()] && len(s.logged) < 16 { // a neighbor may send any number of texts
		s.logged[err.Error()] = true
		s.log.Warn(what, "reason", err)
	}
}

// noteAdvertised remembers what was advertised to the neighbor.
func (s *session) noteAdvertised(advertised map[netip.Prefix]string, evpn int) {
	prefixes := make(map[netip.Prefix]bool, len(advertised))
	for p := range advertised {
		prefixes[p] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advertised, s.evpn = prefixes, evpn
}

func addressOf(a net.Addr) netip.Addr {
	if tcp, is := a.(*net.TCPAddr); is {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
