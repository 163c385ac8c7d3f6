package model

import (
	"fmt"
	"net/netip"
	"slices"
)

// Roles are what a configuration is for.
type Roles struct{ Director, Agent bool }

// String names the roles.
func (r Roles) String() string {
	switch {
	case r.Director && r.Agent:
		return "director and agent"
	case r.Director:
		return "director"
	case r.Agent:
		return "agent"
	}
	return "no role"
}

// Needs returns what a role needs and a valid configuration lacks.
func (c *Config) Needs(roles Roles) (errs FieldErrors) {
	if roles.Director && len(c.Director.Interfaces) == 0 { // an agent's file, or a key lost in an edit
		errs.add("director.interfaces", "is empty; name those that clients' packets come in by")
	}
	return errs
}

// Warnings returns what a valid configuration says that can run, and is likely a mistake.
func (c *Config) Warnings(roles Roles) (errs FieldErrors) {
	if roles.Director {
		c.Director.warnOfAnnounce(&errs)
		c.warnOfPeers(&errs)
		for _, o := range c.OtherTrunks() {
			errs.addWithOther(backendPath(o.Service, o.Backend, "mac"), fmt.Sprintf("director.neighbor.interfaces[%d].name", o.Interface), "%s", o.Problem(c))
		}
		for _, i := range c.EVPNWithoutVTEP() {
			errs.addWithOther(fmt.Sprintf("bgp.neighbors[%d].families", i), "director.vtep", "%s", EVPNNeedsVTEP)
		}
		c.warnOfSegments(&errs)
	}
	c.warnOfChecks(&errs)
	for i := range c.Services {
		s := &c.Services[i]
		if s.Ownerless() {
			errs.add(servicePath(i, "backends"), "are all draining or of weight 0: none is for new connections")
		}
		if j := slices.IndexFunc(s.Backends, func(b Backend) bool { return s.repliesBy(&b) && b.TenantIn(s) != s.Segment }); j >= 0 && roles.Director {
			b := &s.Backends[j] // the others of the service are likely the same
			errs.addWithOther(servicePath(i, "snat"), backendPath(i, j, "segment"), "without snat, backend %s can open connections from %s to %s with the VIP as their source: no director remembers which clients have asked it", b.Address, networkName(b.TenantIn(s)), networkName(s.Segment))
		}
		if !roles.Agent {
			continue
		}
		for j := range s.Backends {
			b := &s.Backends[j]
			mode := b.ModeIn(*s)
			if end := mode.TunnelEnd(b.Address, b.Host); (mode == IPIP || mode == GUE) && len(WithoutDirector([]netip.Addr{end}, c.Directors)) > 0 {
				errs.addWithOther(backendPath(i, j, "address"), "directors", "directors has no address of the family of %s, so its agent would drop what comes there by %s", end, mode)
				break // the others of the service are likely the same
			}
		}
	}
	return errs
}

// warnOfPeers says which hosts of tenants' networks are at VTEPs from which the director takes no packet of theirs. The
// director itself lists those that other sources have said.
func (c *Config) warnOfPeers(errs *FieldErrors) {
	restricted := map[Segment]int{}
	for i := range c.Segments {
		s := &c.Segments[i]
		if len(s.Peers) == 0 {
			continue
		}
		restricted[s.ID] = i
		if j := slices.IndexFunc(s.Hosts, func(h SegmentHost) bool { return !s.TakesFrom(h.VTEP) }); j >= 0 { // the others are likely the same
			errs.addWithOther(fmt.Sprintf("segments[%d].hosts[%d].vtep", i, j), fmt.Sprintf("segments[%d].peers", i), notAPeer, s.Hosts[j].VTEP, s.ID)
		}
	}
	for i := range c.Services {
		for j := range c.Services[i].Backends {
			b := &c.Services[i].Backends[j]
			if at, is := restricted[b.TenantIn(&c.Services[i])]; is && b.VTEP.IsValid() && !c.Segments[at].TakesFrom(b.VTEP) {
				errs.addWithOther(backendPath(i, j, "vtep"), fmt.Sprintf("segments[%d].peers", at), notAPeer, b.VTEP, c.Segments[at].ID)
				break // the others of the service are likely the same
			}
		}
	}
}

const notAPeer = "%s is no peer of %s: the director drops what hosts there send, such as answers to health checks"

// NamedSegments returns the segments that the configuration names: in segments, and as those of services and backends.
func (c *Config) NamedSegments() map[Segment]bool {
	named := map[Segment]bool{}
	for i := range c.Segments {
		named[c.Segments[i].ID] = true
	}
	for i := range c.Services {
		s := &c.Services[i]
		named[s.Segment] = true
		for j := range s.Backends {
			named[s.Backends[j].TenantIn(s)] = true
		}
	}
	return named
}

// warnOfSegments names those in VXLAN and Geneve that something is about, and that have nothing: a VNI may be mistyped. A
// VLAN needs no more than services, which may be in sets.
func (c *Config) warnOfSegments(errs *FieldErrors) {
	named := c.NamedSegments()
	check := func(path string, id Segment, what string) {
		if id.IsOverlay() && !named[id] {
			errs.addWithOther(path, "segments", "%s is in no segments, and no service or backend of the file is in it: %s", id, what)
		}
	}
	for i := range c.API.Clients {
		client := &c.API.Clients[i]
		at := fmt.Sprintf("api.clients[%d]", i)
		check(at+".segment", client.Segment, "nothing is taken from the agent unless a set has its backend there")
		for j, id := range client.Segments {
			check(fmt.Sprintf("%s.segments[%d]", at, j), id, "the client sees nothing unless a set has it")
		}
	}
	for i := range c.BGP.Neighbors {
		check(fmt.Sprintf("bgp.neighbors[%d].segment", i), c.BGP.Neighbors[i].Segment, "the neighbor is told nothing unless a set has VIPs there")
	}
	for i := range c.BGP.Prefixes {
		check(fmt.Sprintf("bgp.prefixes[%d].segment", i), c.BGP.Prefixes[i].Segment, "nothing is announced unless a set has VIPs there")
	}
}

// networkName is a segment in a sentence.
func networkName(s Segment) string {
	if s == (Segment{}) {
		return "the network of no segment"
	}
	return s.String()
}

// warnOfAnnounce says what keeps a group's directors from going on with the flows of a lost one.
func (d *Director) warnOfAnnounce(errs *FieldErrors) {
	const at = "director.snat.announce"
	switch {
	case !d.SNAT.Announce || len(d.Group) < 2:
	case !d.Store.Etcd.Given():
		errs.addWithOther(at, "director.store.etcd", "without director.store.etcd the group's directors do not know each other's flows: a lost director's connections end")
	case d.FlowPortOrDefault() == 0:
		errs.addWithOther(at, "director.flow-port", "with director.flow-port 0 the group's directors do not know each other's flows: a lost director's connections end")
	}
}

// Ownerless reports whether none of the service's backends is for new connections.
func (s *Service) Ownerless() bool {
	return len(s.Backends) > 0 && !slices.ContainsFunc(s.Backends, func(b Backend) bool { return b.State != Draining && b.Weight > 0 })
}

// WithoutDirector returns the ends of tunnels whose family no director has.
func WithoutDirector(ends []netip.Addr, directors []netip.Prefix) (without []netip.Addr) {
	for _, end := range ends {
		if !slices.ContainsFunc(directors, func(d netip.Prefix) bool { return d.Addr().Is4() == end.Is4() }) {
			without = append(without, end)
		}
	}
	return without
}

// SecretFile is a file with a key, a password or a token.
type SecretFile struct{ Field, Path string }

// SecretFiles returns those that the configuration names.
func (c *Config) SecretFiles() (files []SecretFile) {
	add := func(path, format string, args ...any) {
		if path != "" {
			files = append(files, SecretFile{fmt.Sprintf(format, args...), path})
		}
	}
	for _, e := range []struct {
		at   string
		etcd *Etcd
	}{{"director.store.etcd", &c.Director.Store.Etcd}, {"agent.store.etcd", &c.Agent.Store.Etcd}} {
		add(e.etcd.Key, "%s.key", e.at)
		add(e.etcd.PasswordFile, "%s.password-file", e.at)
	}
	add(c.Agent.Store.Directors.Key, "agent.store.directors.key")
	add(c.Agent.Store.Directors.TokenFile, "agent.store.directors.token-file")
	add(c.OVN.Key, "ovn.key")
	for i := range c.BGP.Neighbors {
		n := &c.BGP.Neighbors[i]
		add(n.PasswordFile, "bgp.neighbors[%d].password-file", i)
		if n.BFD != nil && n.BFD.Authentication != nil {
			add(n.BFD.Authentication.PasswordFile, "bgp.neighbors[%d].bfd.authentication.password-file", i)
		}
	}
	for i := range c.BFD.Neighbors {
		if a := c.BFD.Neighbors[i].Authentication; a != nil {
			add(a.PasswordFile, "bfd.neighbors[%d].authentication.password-file", i)
		}
	}
	for i := range c.Hooks {
		add(c.Hooks[i].TokenFile, "hooks[%d].token-file", i)
	}
	add(c.API.Key, "api.key")
	for i := range c.API.Clients {
		add(c.API.Clients[i].TokenFile, "api.clients[%d].token-file", i)
	}
	add(c.Loads.KeyFile, "loads.key-file")
	return files
}
