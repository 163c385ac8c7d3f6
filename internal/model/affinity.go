package model

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Affinity is which fields of a packet choose its slot: the lowest byte is enum affinity. That of a
// source prefix has the lengths in the next bytes.
type Affinity uint32

// The affinities. One of a prefix of the source address is made by [SourcePrefix].
const (
	AffinityFlow            Affinity = 0 // segment, addresses, ports and protocol
	AffinitySourceIP        Affinity = 1 // the source address only
	affinitySourcePrefix    Affinity = 2 // its first bits
	AffinityDestinationPort Affinity = 3 // the destination port only
)

// UsualAffinities are those by which agents report of every service: directors may change to them at any
// time.
var UsualAffinities = []Affinity{AffinityFlow, AffinitySourceIP}

var affinityNames = names[Affinity]{kind: "affinity", list: []name[Affinity]{{AffinityFlow, "flow"}, {AffinitySourceIP, "source-ip"},
	{AffinityDestinationPort, "destination-port"}}}

// AffinityPrefix is how many bits of a source address count, of IPv4 and of IPv6. It is written as 24/64.
type AffinityPrefix struct{ V4, V6 uint8 }

// whole are all bits.
var whole = AffinityPrefix{32, 128}

// SourcePrefix returns the affinity of the first bits of the source address.
func SourcePrefix(p AffinityPrefix) Affinity {
	if p == whole {
		return AffinitySourceIP
	}
	return affinitySourcePrefix | Affinity(p.V4)<<8 | Affinity(p.V6)<<16
}

// Kind returns the affinity's number in enum affinity.
func (a Affinity) Kind() uint8 { return uint8(a) }

// Prefix returns how many bits of the source address count.
func (a Affinity) Prefix() AffinityPrefix {
	if a.Kind() == uint8(affinitySourcePrefix) {
		return AffinityPrefix{uint8(a >> 8), uint8(a >> 16)}
	}
	return whole
}

// AffinityFrom returns the affinity of a number in enum affinity and the bits of the source that count.
func AffinityFrom(kind, v4, v6 uint8) Affinity {
	if kind == uint8(affinitySourcePrefix) {
		return SourcePrefix(AffinityPrefix{v4, v6})
	}
	return Affinity(kind)
}

// counted is a source address with zeros for the bits that do not count.
func (a Affinity) counted(source netip.Addr) netip.Addr {
	p := a.Prefix()
	if p == whole {
		return source
	}
	bits := int(p.V6)
	if source.Is4() {
		bits = int(p.V4)
	}
	return netip.PrefixFrom(source, bits).Masked().Addr()
}

// String returns the name that YAML, JSON and metrics use; with a prefix, source-ip/24/64.
func (a Affinity) String() string {
	if a.Kind() == uint8(affinitySourcePrefix) {
		return AffinitySourceIP.String() + "/" + a.Prefix().String()
	}
	return affinityNames.text(a)
}

// Names returns all names without prefixes.
func (Affinity) Names() []string { return affinityNames.texts() }

// MarshalText writes the name that YAML, JSON and metrics use.
func (a Affinity) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (a *Affinity) UnmarshalText(text []byte) error {
	if lengths, is := strings.CutPrefix(string(text), AffinitySourceIP.String()+"/"); is {
		var p AffinityPrefix
		if err := p.UnmarshalText([]byte(lengths)); err != nil {
			return err
		}
		*a = SourcePrefix(p)
		return nil
	}
	return affinityNames.read(a, text)
}

// String returns the lengths as 24/64.
func (p AffinityPrefix) String() string { return fmt.Sprintf("%d/%d", p.V4, p.V6) }

// MarshalText writes the lengths as 24/64.
func (p AffinityPrefix) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads 24/64.
func (p *AffinityPrefix) UnmarshalText(text []byte) error {
	first, second, both := strings.Cut(string(text), "/")
	v4, err4 := strconv.ParseUint(first, 10, 8)
	v6, err6 := strconv.ParseUint(second, 10, 8)
	if !both || err4 != nil || err6 != nil || v4 < 1 || v4 > uint64(whole.V4) || v6 < 1 || v6 > uint64(whole.V6) {
		return fmt.Errorf("%q is not two lengths, for IPv4 (1 to 32) and IPv6 (1 to 128), as in 24/64", text)
	}
	*p = AffinityPrefix{uint8(v4), uint8(v6)}
	return nil
}

// PlacedBy returns what chooses the slots of the service's packets: its affinity, with its prefix.
func (s *Service) PlacedBy() Affinity {
	if s.AffinityPrefix != (AffinityPrefix{}) {
		return SourcePrefix(s.AffinityPrefix)
	}
	return s.Affinity
}

// affinity checks which fields choose the slots.
func (v *validation) affinity(i int) {
	s := &v.config.Services[i]
	if s.Affinity > 0xff {
		v.errs.add(servicePath(i, "affinity"), "%s is not an affinity (flow, source-ip or destination-port); the prefix is affinity-prefix: %s", s.Affinity, s.Affinity.Prefix())
		return
	}
	if s.Affinity > AffinityDestinationPort || s.Affinity == affinitySourcePrefix {
		v.errs.add(servicePath(i, "affinity"), "%s is not an affinity (flow, source-ip or destination-port)", s.Affinity)
	}
	if s.AffinityPrefix != (AffinityPrefix{}) && s.Affinity != AffinitySourceIP {
		v.errs.addWithOther(servicePath(i, "affinity-prefix"), servicePath(i, "affinity"), "is for affinity source-ip, and this service's is %s", s.Affinity)
	}
}

// of says of what connections have one backend.
func (a Affinity) of() string {
	if a == AffinityDestinationPort {
		return "a port"
	}
	return "a client"
}
