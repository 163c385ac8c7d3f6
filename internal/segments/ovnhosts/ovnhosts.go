// Package ovnhosts says where hosts of those segments are that are networks of OVN, and keeps the director among OVN's
// chassis, as its configuration says.
package ovnhosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/ovn"
	"weir.io/weir/internal/ovsdb"
	"weir.io/weir/internal/segments"
)

// Deps are what Source works with.
type Deps struct {
	Segments *segments.Segments
	Owner    string // of the chassis: the director's host
	Log      *slog.Logger
}

// Source is OVN as a source of where hosts are.
type Source struct {
	segments *segments.Segments
	owner    string
	log      *slog.Logger

	setting sync.Mutex // one version of the configuration at a time
	stop    func()     // ends following, and waits for it; nil: nothing is followed
	follows ovn.Options

	mu       sync.Mutex // guards all below
	wanted   wanted
	snapshot *ovn.Snapshot // nil: nothing is followed
	problems []model.Problem
}

// wanted is what the configuration says.
type wanted struct {
	ovn      model.OVN
	vtep     model.VTEP
	kind     ovn.Kind
	networks map[model.Segment]string
	macs     map[model.Segment]model.MAC // of the director, where they are configured
}

// New returns a Source that follows nothing.
func New(deps Deps) *Source {
	return &Source{segments: deps.Segments, owner: deps.Owner, log: deps.Log}
}

// wantedBy is what a configuration says.
func wantedBy(c *model.Config) wanted {
	w := wanted{ovn: c.OVN, vtep: c.Director.VTEP, kind: ovn.Geneve, networks: map[model.Segment]string{}, macs: map[model.Segment]model.MAC{}}
	for i := range c.Segments {
		if s := &c.Segments[i]; s.Network != "" {
			w.networks[s.ID] = s.Network
			if !s.MAC.IsZero() {
				w.macs[s.ID] = s.MAC
			}
			if s.ID.Kind == model.SegmentVXLAN {
				w.kind = ovn.VXLAN
			}
		}
	}
	return w
}

// encaps are the director's ends of tunnels. They are of one kind: two hosts use the best one that both have, and take
// no packets of another kind.
func (w *wanted) encaps() (list []ovn.Encap) {
	for _, a := range w.vtep.Addresses {
		list = append(list, ovn.Encap{Kind: w.kind, IP: a, Port: w.ownPort()})
	}
	return list
}

// port is the UDP port to which the director sends.
func (w *wanted) port() uint16 {
	if w.kind == ovn.VXLAN {
		return w.vtep.VXLANPort
	}
	return w.vtep.GenevePort
}

// ownPort is the same as OVN has it: 0 is the usual one.
func (w *wanted) ownPort() uint16 {
	if p := w.port(); p != usual[w.kind] {
		return p
	}
	return 0
}

var usual = map[ovn.Kind]uint16{ovn.Geneve: model.DefaultGenevePort, ovn.VXLAN: model.DefaultVXLANPort}

func (s *Source) options(w *wanted) ovn.Options {
	return ovn.Options{Endpoints: w.ovn.Endpoints, TLS: ovsdb.TLS{CA: w.ovn.CA, Cert: w.ovn.Cert, Key: w.ovn.Key}, Leader: w.ovn.LeaderOnly, Log: s.log,
		Register: &ovn.Registration{Name: w.ovn.Chassis, Owner: s.owner, Encaps: w.encaps()}}
}

// Set makes Source follow a configuration, until the context ends. What another OVN has said before goes on until the
// new one answers, for segments whose network is still called so.
func (s *Source) Set(ctx context.Context, c *model.Config) {
	s.setting.Lock()
	defer s.setting.Unlock()
	if ctx.Err() != nil {
		return
	}
	w := wantedBy(c)
	s.mu.Lock()
	before := s.wanted
	s.mu.Unlock()
	same := s.stop != nil && before.ovn.Equal(w.ovn) && before.kind == w.kind && before.port() == w.port() && slices.Equal(before.vtep.Addresses, w.vtep.Addresses)
	if same && maps.Equal(before.networks, w.networks) && maps.Equal(before.macs, w.macs) {
		return
	}
	s.segments.Retain(model.HostsOfOVN, func(id model.Segment, network string) bool { return w.networks[id] == network })
	if !same {
		s.end()
	}
	s.mu.Lock()
	s.wanted = w
	if s.snapshot != nil {
		s.say()
	}
	s.mu.Unlock()
	if !w.ovn.Given() {
		s.segments.Forget(model.HostsOfOVN)
	} else if !same {
		s.begin(ctx, &w)
	}
	if s.follows.Register != nil && (s.follows.Register.Name != w.ovn.Chassis || !sameOVN(s.follows.Endpoints, w.ovn.Endpoints)) {
		s.unregister(ctx, s.follows)
		s.follows = ovn.Options{}
	}
	if w.ovn.Given() {
		s.follows = s.options(&w)
	}
}

// sameOVN reports whether endpoints are of the OVN that others are of: some are the same. Without any there is no OVN.
func sameOVN(a, b []string) bool {
	return slices.ContainsFunc(a, func(e string) bool { return slices.Contains(b, e) })
}

// end ends following.
func (s *Source) end() {
	if s.stop == nil {
		return
	}
	s.stop()
	s.stop = nil
	s.mu.Lock()
	s.snapshot, s.problems = nil, nil
	s.mu.Unlock()
}

// begin follows a database.
func (s *Source) begin(ctx context.Context, w *wanted) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	options := s.options(w)
	s.take(ovn.Snapshot{Status: ovn.Status{Since: time.Now(), Problem: errors.New("there was no connection yet")}})
	following.Go(func() {
		if err := ovn.Follow(ctx, options, s.take); err != nil {
			s.take(ovn.Snapshot{Status: ovn.Status{Since: time.Now(), Problem: err}})
		}
	})
	s.stop = func() {
		cancel()
		following.Wait()
	}
}

// patience is how long a database may take to forget a chassis.
const patience = 5 * time.Second

// unregister removes the director from the chassis of an OVN that is not configured any more.
func (s *Source) unregister(ctx context.Context, o ovn.Options) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := ovn.Unregister(ctx, o); err != nil {
		s.log.Warn("the director stays among OVN's chassis", "chassis", o.Register.Name, "error", err, "fix", "ovn-sbctl chassis-del "+o.Register.Name)
	}
}

// Close ends following. The director stays among OVN's chassis, because its datapath may go on.
func (s *Source) Close() {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.end()
}

// Leave removes the director from OVN's chassis, when nothing forwards any more.
func (s *Source) Leave() {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.end()
	if s.follows.Register != nil {
		s.unregister(context.Background(), s.follows)
	}
}

// take takes what the database says now.
func (s *Source) take(snapshot ovn.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshot = &snapshot
	s.say()
}

// say tells Segments what the last snapshot says. The lock is held.
func (s *Source) say() {
	status := &s.snapshot.Status
	s.problems = nil
	if status.Known {
		said := segments.Said{Hosts: map[model.Segment][]model.SegmentHost{}, VNIs: map[model.Segment]uint32{}, Networks: map[model.Segment]string{}}
		for _, id := range slices.SortedFunc(maps.Keys(s.wanted.networks), func(a, b model.Segment) int { return cmp.Compare(a.Key(), b.Key()) }) {
			s.network(&said, id, s.wanted.networks[id])
		}
		s.segments.Say(model.HostsOfOVN, said)
	}
	if !status.Connected {
		s.segments.Lose(model.HostsOfOVN, status.Since, cmp.Or(status.Problem, errors.New("there is no connection")))
	}
}

// mostNamed bounds how many ports are named for one reason.
const mostNamed = 3

// network adds what the snapshot says of a segment.
func (s *Source) network(said *segments.Said, id model.Segment, name string) {
	said.Hosts[id], said.Networks[id] = nil, name
	network, err := s.snapshot.Network(name)
	if err != nil {
		s.problem(id.String(), model.SeverityError, fmt.Sprintf("%s: no host is known: %v", id, err), "name a logical switch of OVN in segments[].network: its name, the ID that Neutron shows, or its UUID")
		return
	}
	if s.wanted.kind == ovn.Geneve {
		said.VNIs[id] = network.Key
	}
	own := s.wanted.encaps()
	bad := map[string][]string{} // names of ports, by what is wrong
	place := map[netip.Addr]bool{}
	var atDirector []string // ports
	for _, p := range s.snapshot.Ports(network.ID) {
		if p.Chassis == nil {
			continue
		}
		if p.Chassis.Weir && p.Chassis.Name == s.wanted.ovn.Chassis {
			s.ownPort(id, &p)
			atDirector = append(atDirector, p.Name)
			continue
		}
		for _, a := range p.Addresses {
			for _, ip := range a.IPs {
				of := p
				if p.Shared {
					if other, is := s.snapshot.Port(network.ID, ip); is {
						of = other
					}
				}
				if place[ip] {
					continue
				}
				place[ip] = true
				host, err := s.host(&of, ip, own)
				if err != nil {
					bad[err.Error()] = append(bad[err.Error()], of.Name)
					continue
				}
				said.Hosts[id] = append(said.Hosts[id], host)
			}
		}
	}
	for _, why := range slices.Sorted(maps.Keys(bad)) {
		ports := slices.Compact(bad[why])
		text := fmt.Sprintf("%s: %d ports of %s are left out, such as %v: %s", id, len(ports), cmp.Or(network.Name, name), ports[:min(len(ports), mostNamed)], why)
		s.problem(id.String(), model.SeverityWarning, text, "")
	}
	for _, v := range s.snapshot.Virtual(network.ID) {
		s.virtual(id, &v, atDirector)
	}
}

// virtual checks a virtual port of which the director may be meant to have the address.
func (s *Source) virtual(id model.Segment, v *ovn.Virtual, atDirector []string) {
	isOwn := func(port string) bool { return slices.Contains(atDirector, port) }
	switch {
	case slices.ContainsFunc(v.Addresses, func(a ovn.Address) bool { return a.MAC == s.mac(id) }):
		s.problem(id.String(), model.SeverityError, fmt.Sprintf("%s: port %s has this director's MAC address and is virtual, so OVN sends its packets to none but its parents: %v", id, v.Name, v.Parents[:min(len(v.Parents), mostNamed)]),
			"give the addresses that other ports may have, too (Neutron: in allowed address pairs), to a port of their own, and let the director's port have them in the same way")
	case slices.ContainsFunc(v.Parents, isOwn) && v.Chassis != nil && !v.Chassis.Weir:
		s.problem(id.String(), model.SeverityWarning, fmt.Sprintf("%s: OVN's routers send packets for virtual port %s to port %s on host %s, which has announced its address, and not to this director", id, v.Name, v.Parent, v.Chassis.Name),
			fmt.Sprintf("let no host but directors announce it (arp_announce, arp_ignore), then ovn-sbctl clear Port_Binding %s chassis virtual_parent", v.Name))
	}
}

// mac is the director's in a segment.
func (s *Source) mac(id model.Segment) model.MAC {
	if mac, given := s.wanted.macs[id]; given {
		return mac
	}
	return model.VTEPMAC(s.wanted.vtep.Addresses, id)
}

// ownPort checks a port that is at this director: OVN's hosts send packets to its MAC address.
func (s *Source) ownPort(id model.Segment, p *ovn.Port) {
	mac := s.mac(id)
	for _, a := range p.Addresses {
		if a.MAC != mac {
			s.problem(id.String(), model.SeverityError, fmt.Sprintf("%s: OVN sends packets for port %s to %v, and this director takes those to %v", id, p.Name, a.MAC, mac),
				"give the segment this mac, or the port the director's MAC address")
			return
		}
	}
}

// host says where a port's address is.
func (s *Source) host(p *ovn.Port, ip netip.Addr, own []ovn.Encap) (h model.SegmentHost, err error) {
	to, err := p.Tunnel(own)
	if err != nil {
		return h, err
	}
	if port := cmp.Or(to.Port, usual[to.Kind]); port != s.wanted.port() {
		return h, fmt.Errorf("chassis %s takes %s at UDP port %d, and the director sends to %d", p.Chassis.Name, to.Kind, port, s.wanted.port())
	}
	vni, options, err := p.Wire(to.Kind, 0)
	if err != nil {
		return h, err
	}
	h = model.SegmentHost{Address: ip, MAC: p.MAC(ip), VTEP: to.IP, VNI: vni, Options: model.GeneveOptions(options)}
	if h.MAC.IsZero() {
		return h, errors.New("they have no MAC address")
	}
	if why := model.AddressProblem(ip); why != "" {
		return h, fmt.Errorf("address %v %s", ip, why)
	}
	return h, nil
}

func (s *Source) problem(part string, severity model.Severity, text, fix string) {
	s.problems = append(s.problems, model.Problem{Part: part, Severity: severity, Text: text, Fix: fix})
}

// Status returns how the director is connected to OVN; nil: it is not configured.
func (s *Source) Status() *model.OVNStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshot == nil {
		return nil
	}
	of := &s.snapshot.Status
	status := model.OVNStatus{Connected: of.Connected, Endpoint: of.Endpoint, Since: of.Since, Known: of.Known, Networks: of.Networks, Ports: of.Ports, IPsec: of.IPsec,
		Chassis: s.wanted.ovn.Chassis, Registered: of.Registered, Unread: slices.Clone(of.Unread)}
	if of.Problem != nil {
		status.Problem = of.Problem.Error()
	}
	if of.Unregistered != nil {
		status.Unregistered = of.Unregistered.Error()
	}
	return &status
}

// Problems returns what is wrong with OVN, but for its loss, which Segments has.
func (s *Source) Problems() []model.Problem {
	status := s.Status()
	if status == nil {
		return nil
	}
	s.mu.Lock()
	found := slices.Clone(s.problems)
	s.mu.Unlock()
	add := func(part string, severity model.Severity, text, fix string) {
		found = append(found, model.Problem{Part: part, Severity: severity, Text: text, Fix: fix})
	}
	if status.Connected && status.Problem != "" {
		add("ovn database", model.SeverityWarning, "OVN's Southbound database: "+status.Problem, "")
	}
	if status.Connected && status.Unregistered != "" {
		severity := model.SeverityError
		if status.Registered {
			severity = model.SeverityWarning
		}
		add("ovn chassis", severity, fmt.Sprintf("OVN's hosts take no packets from this director, or not by all its tunnels: chassis %s: %s", status.Chassis, status.Unregistered), "")
	}
	if status.IPsec {
		add("ovn ipsec", model.SeverityError, "OVN encrypts tunnels (ipsec in NB_Global): its hosts take no packets from this director", "ovn-nbctl set nb_global . ipsec=false, if the hosts' network is trusted")
	}
	if len(status.Unread) > 0 {
		add("ovn ports", model.SeverityWarning, fmt.Sprintf("%d ports of OVN have addresses that cannot be read, such as %v", len(status.Unread), status.Unread[:min(len(status.Unread), mostNamed)]), "")
	}
	return found
}
