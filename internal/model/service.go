package model

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Service is a VIP, protocol and ports in a segment, with its backends.
type Service struct {
	Name     string     `json:"name"`
	Segment  Segment    `json:"segment,omitzero"`
	VIP      netip.Addr `json:"vip"`
	Protocol Protocol   `json:"protocol"`
	Port     PortRange  `json:"port"`
	// SourceRanges are where its clients are: packets of other clients are dropped. None:
	// everywhere.
	SourceRanges []netip.Prefix `json:"source-ranges,omitempty" minItems:"1"`
	// KernelSources leaves packets from the director's KernelSources to the director's kernel.
	KernelSources bool `json:"kernel-sources,omitempty"`
	Mode          Mode `json:"mode"`
	// Fallback is, with mode redirect, how packets go that are not redirected; nil: gue.
	Fallback *Mode `json:"fallback,omitempty"`
	// RedirectTo is, with mode redirect, the prefixes that clients' hosts let connections be handed
	// over to; none: the listed backends.
	RedirectTo []netip.Prefix `json:"redirect-to,omitempty"`
	// RedirectUnprobed makes directors hand connections over to all backends, without finding
	// out whether they can take them.
	RedirectUnprobed bool `json:"redirect-unprobed,omitempty"`
	SNAT             bool `json:"snat,omitempty"` // with mode nat: full NAT
	// AskRedirect makes directors with full NAT ask backends that are directors to hand connections
	// over, in the place of clients.
	AskRedirect bool     `json:"ask-redirect,omitempty"`
	Policy      Policy   `json:"policy,omitzero"`
	Affinity    Affinity `json:"affinity,omitzero"`
	// AffinityPrefix is how many bits of the source address count, with affinity source-ip; zero: all.
	AffinityPrefix AffinityPrefix `json:"affinity-prefix,omitzero"`
	RingSize       uint32         `json:"ring-size,omitempty"`    // slots, a prime; 0: by the number of backends
	Retention      Duration       `json:"retention,omitzero"`     // how long a generation stays in the log at least
	MaxRetention   Duration       `json:"max-retention,omitzero"` // and at most
	QUIC           []QUICConfig   `json:"quic,omitempty"`         // with protocol udp: connection IDs that name the backend
	// MinHealthy is how many backends must not be down for the VIP to be announced; nil: one.
	MinHealthy *uint32      `json:"min-healthy,omitempty"`
	Health     *HealthCheck `json:"health,omitempty"` // nil: backends are not checked
	Backends   []Backend    `json:"backends"`
}

// The defaults and the bounds of a service's times. Every generation in a log costs memory and work.
const (
	DefaultRetention    = Duration(time.Minute)
	DefaultMaxRetention = Duration(24 * time.Hour)
	minRetention        = Duration(time.Millisecond)
	maxRetention        = Duration(24 * time.Hour)
	maxMaxRetention     = Duration(30 * 24 * time.Hour)
)

// RetentionOrDefault returns how long a generation stays in the log at least.
func (s *Service) RetentionOrDefault() time.Duration {
	if s.Retention == 0 {
		return time.Duration(DefaultRetention)
	}
	return time.Duration(s.Retention)
}

// MaxRetentionOrDefault returns how long a generation stays in the log at most.
func (s *Service) MaxRetentionOrDefault() time.Duration {
	if s.MaxRetention == 0 {
		return max(time.Duration(DefaultMaxRetention), s.RetentionOrDefault())
	}
	return time.Duration(s.MaxRetention)
}

const maxVLAN = 4094

// setDefaults fills in what has a default.
func (s *Service) setDefaults() {
	s.Retention = Duration(s.RetentionOrDefault())
	s.MaxRetention = Duration(s.MaxRetentionOrDefault())
	if h := s.Health; h != nil {
		s.Health = h.withDefaults()
	}
	if s.Backends == nil {
		s.Backends = []Backend{}
	}
	for j := range s.Backends {
		s.Backends[j].setDefaults()
	}
}

// service checks one service and its backends by themselves.
func (v *validation) service(i int) {
	s := &v.config.Services[i]
	if problem := nameProblem(s.Name); problem != "" {
		v.errs.add(servicePath(i, "name"), "%s", problem)
	}
	if problem := addressProblem(s.VIP); problem != "" {
		v.errs.add(servicePath(i, "vip"), "%s", withAddress(s.VIP, problem))
	}
	if !slices.ContainsFunc(protocolNames.list, func(n name[Protocol]) bool { return n.value == s.Protocol }) {
		v.errs.add(servicePath(i, "protocol"), "is required (tcp, udp or sctp)")
	}
	if s.Port.First > s.Port.Last || s.Port.First == 0 && s.Port.Last != 0 {
		v.errs.add(servicePath(i, "port"), "%s is not a port, a range of ports or all", s.Port)
	}
	v.segment(i)
	v.sourceRanges(i)
	if problem := modeProblem(s.Mode); problem != "" {
		v.errs.add(servicePath(i, "mode"), "%s", problem)
	}
	v.redirect(i)
	v.policy(i)
	v.affinity(i)
	v.serviceSNAT(i)
	v.sctp(i)
	v.quic(i)
	v.health(i)
	v.ringSize(i)
	v.retention(i)
	v.backends(i)
}

func (v *validation) segment(i int) {
	s := v.config.Services[i].Segment
	if problem := segmentProblem(s); problem != "" {
		v.errs.add(servicePath(i, "segment"), "%s", problem)
		return
	}
	// A file without director.interfaces is an agent's, where no tunnel of a tenant's network ends.
	if s.IsOverlay() && len(v.config.Director.Interfaces) > 0 && !v.config.Director.VTEP.Given() {
		v.errs.addWithOther(servicePath(i, "segment"), "director.vtep", "%s needs director.vtep, where its tunnels end", s)
	}
}

// sctp refuses what services of SCTP cannot have. Policies and modes that need TCP say so themselves.
func (v *validation) sctp(i int) {
	s := &v.config.Services[i]
	if s.Protocol != SCTP {
		return
	}
	for j := range s.Backends {
		if s.Backends[j].Host.IsValid() {
			v.errs.addWithOther(backendPath(i, j, "host"), servicePath(i, "protocol"), "is not available for protocol sctp yet: agents give pods packets of TCP and UDP alone")
			return
		}
	}
}

// serviceSNAT checks that full NAT has the right mode and addresses to use.
func (v *validation) serviceSNAT(i int) {
	s := &v.config.Services[i]
	if !s.SNAT {
		return
	}
	isNAT := s.PacketMode() == NAT
	needs := make(map[bool]netip.Addr)
	for _, b := range s.Backends {
		if b.ModeIn(*s) == NAT {
			isNAT = true
			needs[b.Address.Is4()] = b.Address
		}
	}
	if !isNAT {
		v.errs.add(servicePath(i, "snat"), "is only for mode nat, and this service %s %s",
			map[bool]string{false: "is", true: "falls back to"}[s.Mode == Redirect], s.PacketMode())
		return
	}
	// A file without director.interfaces is an agent's, which gives out no ports.
	if len(v.config.Director.Interfaces) == 0 {
		return
	}
	for _, a := range v.config.Director.SNAT.Addresses {
		delete(needs, a.Is4())
	}
	for _, is4 := range []bool{true, false} {
		a, missing := needs[is4]
		if !missing || !a.IsValid() {
			continue
		}
		v.errs.addWithOther(servicePath(i, "snat"), "director.snat.addresses",
			"needs an %s address in director.snat.addresses for backend %s", family(a), a)
	}
}

func (v *validation) ringSize(i int) {
	s := &v.config.Services[i]
	size := s.RingSize
	switch {
	case size == 0:
	case size > MaxRingSize:
		v.errs.add(servicePath(i, "ring-size"), "%d is larger than the largest ring, %d", size, MaxRingSize)
	case !isPrime(size):
		v.errs.add(servicePath(i, "ring-size"), "%d is not a prime; the next one is %d", size, nextPrime(size))
		v.errs.fix(fmt.Sprint(nextPrime(size)))
	case int(size) < len(s.Backends):
		v.errs.add(servicePath(i, "ring-size"), "%d slots are too few for %d backends", size, len(s.Backends))
	}
	// The size of a larger default ring is not worked out: the time of a search for primes grows
	// with the numbers.
	if size == 0 && len(s.Backends)*slotsPerBackend > MaxRingSize {
		v.errs.add(servicePath(i, "ring-size"), "is required for %d backends: %d slots for each are more than the largest ring, %d",
			len(s.Backends), slotsPerBackend, MaxRingSize)
	}
}

func (v *validation) retention(i int) {
	s := &v.config.Services[i]
	v.duration(servicePath(i, "retention"), s.Retention, minRetention, maxRetention)
	v.duration(servicePath(i, "max-retention"), s.MaxRetention, minRetention, maxMaxRetention)
	if s.Retention != 0 && s.MaxRetention != 0 && s.MaxRetention < s.Retention {
		v.errs.addWithOther(servicePath(i, "max-retention"), servicePath(i, "retention"), "%v is shorter than retention, %v", s.MaxRetention, s.Retention)
	}
}

// SourceRange returns the longest of a service's source ranges that a client is in; false: it is in
// none. A service without source ranges is for all clients.
func SourceRange(ranges []netip.Prefix, client netip.Addr) (longest netip.Prefix, within bool) {
	for _, p := range ranges {
		if p.Contains(client) && (!within || p.Bits() > longest.Bits()) {
			longest, within = p, true
		}
	}
	return longest, within || len(ranges) == 0
}

// sourceRanges checks a service's source ranges.
func (v *validation) sourceRanges(i int) {
	s := &v.config.Services[i]
	for j, p := range s.SourceRanges {
		path := fmt.Sprintf("%s[%d]", servicePath(i, "source-ranges"), j)
		switch {
		case !p.IsValid():
			v.errs.add(path, "%s is not an address or prefix", p)
		case p.Addr().Is4In6():
			v.errs.add(path, "%s is an IPv4 prefix in IPv6 clothing; write it as IPv4", p)
		case p.Masked() != p:
			v.errs.add(path, "%s has bits beyond its length; write %s, or %s for one address", p, p.Masked(), p.Addr())
		case s.VIP.IsValid() && p.Addr().Is4() != s.VIP.Is4():
			v.errs.addWithOther(path, servicePath(i, "vip"), "%s is %s and VIP %s is %s: no client of it is there",
				prefixText(p), family(p.Addr()), s.VIP, family(s.VIP))
		}
	}
}
