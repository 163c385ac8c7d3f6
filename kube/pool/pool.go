// Package pool says which addresses Services get, from ranges that an administrator gives and by
// what is claimed already. It is pure: no clock, no Kubernetes.
package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Pool is addresses that Services may get.
type Pool struct {
	Name      string  `json:"name"`
	Addresses []Range `json:"addresses"`
	// OnRequest says that only Services that name the pool, or an address of it, get one.
	OnRequest bool `json:"on-request,omitempty"`
	// Namespaces are those whose Services may have its addresses; empty: all.
	Namespaces []string `json:"namespaces,omitempty"`
	// AvoidBuggy leaves out IPv4 addresses that end in .0 or .255, which some routers and
	// hosts take for broadcasts.
	AvoidBuggy bool `json:"avoid-buggy,omitempty"`
	// AcrossNamespaces lets Services of all namespaces with the same key share an address of it.
	AcrossNamespaces bool `json:"share-across-namespaces,omitempty"`
}

// Range is the addresses of one family from the first to the last, inclusive.
type Range struct{ First, Last netip.Addr }

// UnmarshalText reads an address, a prefix, or two addresses with a hyphen.
func (r *Range) UnmarshalText(text []byte) error {
	parsed, err := ParseRange(string(text))
	if err == nil {
		*r = parsed
	}
	return err
}

// MarshalText writes the range as ParseRange reads it.
func (r Range) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String returns an address, or two with a hyphen.
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// ParseRange reads 203.0.113.7, 203.0.113.0/28 (all of its addresses) or
// 203.0.113.10-203.0.113.20.
func ParseRange(text string) (none Range, err error) {
	wrong := fmt.Errorf("%q is not an address, a prefix (203.0.113.0/28) or a range (203.0.113.10-203.0.113.20)", text)
	if first, last, isRange := strings.Cut(text, "-"); isRange {
		a, err1 := netip.ParseAddr(strings.TrimSpace(first))
		b, err2 := netip.ParseAddr(strings.TrimSpace(last))
		switch {
		case errors.Join(err1, err2) != nil || a.Zone()+b.Zone() != "" || a.Is4In6() || b.Is4In6():
			return none, wrong
		case a.Is4() != b.Is4():
			return none, fmt.Errorf("%q begins in one family and ends in the other", text)
		case b.Less(a):
			return none, fmt.Errorf("%q ends before it begins", text)
		}
		return Range{a, b}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		return Range{a, a}, nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		return none, wrong
	case p != p.Masked():
		return none, fmt.Errorf("%q has bits behind its prefix; %s is the prefix", text, p.Masked())
	}
	return Range{p.Addr(), lastOf(p)}, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// Contains reports whether the address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// Has reports whether the pool can give the address.
func (p *Pool) Has(a netip.Addr) bool {
	return !p.avoids(a) && slices.ContainsFunc(p.Addresses, func(r Range) bool { return r.Contains(a) })
}

func (p *Pool) avoids(a netip.Addr) bool {
	return p.AvoidBuggy && a.Is4() && (a.As4()[3] == 0 || a.As4()[3] == 255)
}

// admits reports whether Services of the namespace may have the pool's addresses.
func (p *Pool) admits(namespace string) bool {
	return len(p.Namespaces) == 0 || slices.Contains(p.Namespaces, namespace)
}
