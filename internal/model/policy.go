package model

// Policy is how a new connection is placed. The numbers are those of enum policy.
type Policy uint8

// The placement policies.
const (
	Maglev Policy = iota
	Random
	RoundRobin
	LeastConn
	P2C
)

// AmongAll reports whether a new connection may go to any backend. No row says which backend has
// it, so directors must remember it. With p2c it depends on the mode: [Service.AmongAll].
func (p Policy) AmongAll() bool { return p == Random || p == RoundRobin || p == LeastConn }

// AmongAll reports whether the service's policy places new connections on any backend. p2c does,
// except in gue: there it chooses between the two that packets can name.
func (s *Service) AmongAll() bool { return s.Policy.AmongAll() || s.Policy == P2C && s.Mode != GUE }

// AmongAll is [Service.AmongAll], for the policy in the table: a p2c that has turns.
func (s *TableService) AmongAll() bool {
	return s.Policy.AmongAll() || s.Policy == P2C && len(s.Ring.Turns) > 0
}

// ByLoad reports whether the policy compares the loads of backends.
func (p Policy) ByLoad() bool { return p == LeastConn || p == P2C }

var policyNames = names[Policy]{kind: "policy", list: []name[Policy]{{Maglev, "maglev"}, {Random, "random"},
	{RoundRobin, "round-robin"}, {LeastConn, "least-conn"}, {P2C, "p2c"}}}

// String returns the name that YAML, JSON and metrics use.
func (p Policy) String() string { return policyNames.text(p) }

// Names returns all names.
func (Policy) Names() []string { return policyNames.texts() }

// MarshalText writes the name that YAML, JSON and metrics use.
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (p *Policy) UnmarshalText(text []byte) error { return policyNames.read(p, text) }

// policy checks that the service's policy exists, and can do what it promises.
func (v *validation) policy(i int) {
	switch s := &v.config.Services[i]; s.Policy {
	case Maglev:
	case P2C:
		if v.config.Services[i].Mode != GUE {
			v.amongAll(i)
		}
		if v.config.Services[i].PacketMode() == GUE {
			v.ofTwo(i)
		}
	case Random, RoundRobin, LeastConn:
		v.amongAll(i)
	default:
		v.errs.add(servicePath(i, "policy"), "%s is not a policy (maglev, random, round-robin, least-conn or p2c)", s.Policy)
	}
}

// noBeginning says why a connection cannot be placed by a policy.
var noBeginning = map[Protocol]string{
	UDP:  "no datagram says that it begins a flow",
	SCTP: "directors take associations of sctp for flows of datagrams, whose beginning they do not look for",
}

// amongAll checks that a connection that may be on any backend can be found: its beginning can be
// seen, and directors remember it, or see no more of its packets.
func (v *validation) amongAll(i int) {
	s := &v.config.Services[i]
	if s.Protocol.Datagrams() {
		v.errs.addWithOther(servicePath(i, "policy"), servicePath(i, "protocol"),
			"%s is for protocol tcp: %s", s.Policy, noBeginning[s.Protocol])
	}
	if s.Affinity != AffinityFlow {
		v.errs.addWithOther(servicePath(i, "policy"), servicePath(i, "affinity"),
			"%s spreads connections over all backends, and affinity %s wants those of %s on one", s.Policy, s.Affinity, s.Affinity.of())
	}
	if s.Mode == GUE {
		v.errs.addWithOther(servicePath(i, "policy"), servicePath(i, "mode"),
			"%s may place a connection on any backend, and directors remember no TCP that goes by gue; p2c is for gue, %s for l2dsr, ipip, nat and redirect", s.Policy, s.Policy)
		return
	}
	if s.Mode == Redirect && s.PacketMode() == GUE {
		return // the policy places only redirected connections
	}
	for j := range s.Backends {
		if s.Backends[j].ModeIn(*s) == GUE {
			v.errs.addWithOther(backendPath(i, j, "mode"), servicePath(i, "policy"),
				"with policy %s no backend is in mode gue, as directors remember no TCP that goes by it", s.Policy)
		}
	}
}

// ofTwo checks that a connection that may be on either of two backends can be found: both have
// agents that see whether it is theirs, and a packet to one of them can name the other.
func (v *validation) ofTwo(i int) {
	s := &v.config.Services[i]
	if s.Mode == GUE && s.Protocol.Datagrams() {
		v.errs.addWithOther(servicePath(i, "policy"), servicePath(i, "protocol"),
			"p2c is for protocol tcp: an agent cannot tell which of two backends has a flow of %s", s.Protocol)
	}
	if s.Mode == GUE && s.Affinity != AffinityFlow {
		v.errs.addWithOther(servicePath(i, "policy"), servicePath(i, "affinity"),
			"p2c spreads connections over two backends, and affinity %s wants those of %s on one", s.Affinity, s.Affinity.of())
	}
	if v.config.Agent.SocketsElsewhere {
		v.errs.addWithOther(servicePath(i, "policy"), "agent.sockets-elsewhere",
			"p2c needs agents that see which backend has a connection, and with sockets-elsewhere this host's sees none")
	}
	first := -1 // backend with a valid address
	for j := range s.Backends {
		b := &s.Backends[j]
		if mode := b.ModeIn(*s); mode != GUE {
			v.errs.addWithOther(backendPath(i, j, "mode"), servicePath(i, "policy"),
				"in mode gue policy p2c needs every backend in it, and this one is %s", mode)
		}
		switch {
		case !b.Address.IsValid():
		case first < 0:
			first = j
		case b.Address.Is4() != s.Backends[first].Address.Is4():
			v.errs.addWithOther(backendPath(i, j, "address"), servicePath(i, "policy"),
				"%s is %s and %s is %s: in mode gue policy p2c needs backends of one family, because a packet names others of its outer header's only",
				b.Address, family(b.Address), s.Backends[first].Address, family(s.Backends[first].Address))
		}
	}
}
