package model

import (
	"net/netip"
	"time"
)

// The smallest IP packets that every link must carry (RFC 791, RFC 8200), and
// the largest that jumbo links commonly do.
const (
	minMTU4 = 576
	minMTU6 = 1280
	maxMTU  = 9216
)

const maxVLAN = 4094

// service checks one service and its backends by themselves.
func (v *validation) service(i int) {
	s := &v.config.Services[i]
	if problem := nameProblem(s.Name); problem != "" {
		v.errs.add(servicePath(i, "name"), "%s", problem)
	}
	if problem := addressProblem(s.VIP); problem != "" {
		v.errs.add(servicePath(i, "vip"), "%s", withAddress(s.VIP, problem))
	}
	if s.Protocol != TCP && s.Protocol != UDP {
		v.errs.add(servicePath(i, "protocol"), "is required (tcp or udp)")
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
	if s.Affinity != AffinityFlow && s.Affinity != AffinitySourceIP {
		v.errs.add(servicePath(i, "affinity"), "%s is not an affinity (flow or source-ip)", s.Affinity)
	}
	v.serviceSNAT(i)
	v.quic(i)
	v.health(i)
	v.ringSize(i)
	v.retention(i)
	v.backends(i)
}

func (v *validation) segment(i int) {
	s := v.config.Services[i].Segment
	outer, inner := s.ID>>12, s.ID&0xfff
	switch {
	case s == Segment{}:
	case s.Kind == SegmentVXLAN || s.Kind == SegmentGeneve:
		v.errs.add(servicePath(i, "segment"), "%s is not available yet; none and vlan:ID are", s)
	case s.Kind != SegmentVLAN || outer > maxVLAN || inner == 0 || inner > maxVLAN:
		v.errs.add(servicePath(i, "segment"), "%s is not none or vlan:ID with an ID from 1 to %d", s, maxVLAN)
	}
}

func modeProblem(m Mode) string {
	switch m {
	case L2DSR, IPIP, GUE, NAT, Redirect:
		return ""
	}
	return m.String() + " is not a mode (l2dsr, ipip, gue, nat or redirect)"
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

// The bounds on times. Every generation in a log costs memory and work.
const (
	minRetention    = Duration(time.Millisecond)
	maxRetention    = Duration(24 * time.Hour)
	maxMaxRetention = Duration(30 * 24 * time.Hour)
	minCoalesce     = Duration(time.Millisecond)
	maxCoalesce     = Duration(10 * time.Second)
	minNotice       = Duration(time.Millisecond)
	maxNotice       = Duration(time.Minute)
	minSuspect      = Duration(time.Millisecond)
	maxSuspect      = Duration(time.Minute)
)

func (v *validation) retention(i int) {
	s := &v.config.Services[i]
	v.duration(servicePath(i, "retention"), s.Retention, minRetention, maxRetention)
	v.duration(servicePath(i, "max-retention"), s.MaxRetention, minRetention, maxMaxRetention)
	if s.Retention != 0 && s.MaxRetention != 0 && s.MaxRetention < s.Retention {
		v.errs.addWithOther(servicePath(i, "max-retention"), servicePath(i, "retention"), "%v is shorter than retention, %v", s.MaxRetention, s.Retention)
	}
}

// duration checks a time that is given.
func (v *validation) duration(path string, d, least, most Duration) {
	if d != 0 && (d < least || d > most) {
		v.errs.add(path, "%v is not from %v to %v", d, least, most)
	}
}

func withAddress(a netip.Addr, problem string) string {
	if !a.IsValid() {
		return problem
	}
	return a.String() + " " + problem
}
