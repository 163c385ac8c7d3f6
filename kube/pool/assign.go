package pool

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The kinds of others that get addresses as Services do.
const (
	Gateway      = "Gateway"
	LoadBalancer = "LoadBalancer"
)

// Service names a Service, or anything else that is reached at an address of a pool.
type Service struct {
	Kind      string `json:"kind,omitempty"` // empty: it is a Service
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns NAMESPACE/NAME, behind its kind if it is no Service.
func (s Service) String() string {
	name := s.Namespace + "/" + s.Name
	if s.Kind != "" {
		name = s.Kind + " " + name
	}
	return name
}

// Compare orders by namespace, name and kind.
func (s Service) Compare(other Service) int {
	return cmp.Or(strings.Compare(s.Namespace, other.Namespace), strings.Compare(s.Name, other.Name), strings.Compare(s.Kind, other.Kind))
}

// Request is what a Service wants.
type Request struct {
	Service
	Families []Family
	Pool     string       // the name of the pool that it asks for; empty: any pool
	Wanted   []netip.Addr // the exact addresses that it asks for; those of a family that is not in Families mean nothing
	Had      []netip.Addr // the addresses that its status has
	Key      string       // Services with the same key may share an address; empty: it shares none
	Ports    []string     // its ports, as 80/TCP, in order: no Service that shares its address has one of them
	With     []string     // other namespaces, whose Services may join it at its address with its key; *: all
	// Not are pools that are not for it whatever its namespace, and what they are not for: "what
	// has its labels".
	Not map[string]string
}

// excluded says what of the request the pool is not for, or nothing.
func (p *Pool) excluded(r Request) string {
	if !p.admits(r.Namespace) {
		return "namespace " + r.Namespace
	}
	return r.Not[p.Name]
}

// Family is an IP family.
type Family bool

// The families.
const (
	IPv4 Family = false
	IPv6 Family = true
)

// String returns IPv4 or IPv6.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family { return Family(!a.Is4()) }

// Claims say which Services hold which addresses. A claimed address belongs to no other Service,
// even while it is not used.
type Claims map[netip.Addr]Holders

// assigner chooses addresses for some requests, by what is claimed and what it has chosen before.
type assigner struct {
	*Allocations
	chosen Claims                  // the claims, made or to be made, of addresses that it has given
	claim  Claims                  // the addresses to claim, by holders in the order in which they can claim them
	shared map[string][]netip.Addr // the shared addresses that it has given, by key
	next   cursors
	now    *result // the result of the request that it looks at
}

// holders returns the Services that have an address, including those that have just got it.
func (a *assigner) holders(x netip.Addr) Holders {
	if h, is := a.chosen[x]; is {
		return h
	}
	return a.claims[x]
}

// chooses reports whether any address would do.
func (a *assigner) chooses(r Request, family Family) bool {
	_, wants := ofFamily(r.Wanted, family)
	_, keeps := a.kept(r, family)
	return !wants && !keeps && !slices.ContainsFunc(r.Had, func(x netip.Addr) bool { return FamilyOf(x) == family && a.may(r, x) == "" })
}

func ofFamily(list []netip.Addr, family Family) (netip.Addr, bool) {
	i := slices.IndexFunc(list, func(x netip.Addr) bool { return FamilyOf(x) == family })
	if i < 0 {
		return netip.Addr{}, false
	}
	return list[i], true
}

// one returns an address for the request, or says why there is none.
func (a *assigner) one(r Request, family Family) netip.Addr {
	if wanted, given := ofFamily(r.Wanted, family); given {
		if why := a.may(r, wanted); why != "" {
			return a.problem(r, "the address %s that it asks for %s", wanted, why)
		}
		return a.assign(r, wanted)
	}
	if kept, found := a.kept(r, family); found {
		if !slices.ContainsFunc(a.pools, func(p Pool) bool { return p.Has(kept) }) {
			a.problem(r, "it keeps %s, which no pool has any more; delete the %s to free it", kept, cmp.Or(r.Kind, "Service"))
		}
		return a.assign(r, kept)
	}
	for _, x := range a.owned[r.Service] {
		if why := a.holders(x).Refuse(r.holder()); FamilyOf(x) == family && why != "" {
			a.problem(r, "it cannot keep %s, which %s", x, why)
		}
	}
	for _, had := range r.Had {
		if FamilyOf(had) == family && a.may(r, had) == "" {
			return a.assign(r, had)
		}
	}
	if shared, found := a.joins(r, family); found {
		return a.assign(r, shared)
	}
	var asked []string
	for i := range a.pools {
		p := &a.pools[i]
		if p.excluded(r) != "" || r.Pool != "" && r.Pool != p.Name || r.Pool == "" && p.OnRequest {
			continue
		}
		asked = append(asked, p.Name)
		if free, found := a.free(i, family); found {
			return a.assign(r, free)
		}
	}
	switch {
	case len(asked) > 0:
		return a.problem(r, "no %s address is free in the pools that it may use: %s", family, strings.Join(asked, ", "))
	case r.Pool != "":
		i := slices.IndexFunc(a.pools, func(p Pool) bool { return p.Name == r.Pool })
		if i < 0 {
			return a.problem(r, "there is no pool %q that it asks for", r.Pool)
		}
		return a.problem(r, "pool %q that it asks for is not for %s", r.Pool, a.pools[i].excluded(r))
	}
	if len(a.pools) == 0 {
		return a.problem(r, "there is no pool to take an address from")
	}
	return a.problem(r, "no pool gives addresses to it: each is for others, or has to be asked for by name")
}

func (a *assigner) problem(r Request, format string, args ...any) (none netip.Addr) {
	a.now.problems = append(a.now.problems, fmt.Sprintf(format, args...))
	return none
}

// kept returns the address that the Service has claimed and may keep; among several, the one in its
// status.
func (a *assigner) kept(r Request, family Family) (best netip.Addr, found bool) {
	for _, x := range a.owned[r.Service] {
		if FamilyOf(x) != family || r.Pool != "" && !a.inPool(r.Pool, x) || a.holders(x).Refuse(r.holder()) != "" {
			continue
		}
		if isHad, bestHad := slices.Contains(r.Had, x), slices.Contains(r.Had, best); !found || isHad && !bestHad || isHad == bestHad && x.Less(best) {
			best, found = x, true
		}
	}
	return best, found
}

func (a *assigner) inPool(name string, x netip.Addr) bool {
	return slices.ContainsFunc(a.pools, func(p Pool) bool { return p.Name == name && p.Has(x) })
}

// may says why the Service may not have the address, or nothing.
func (a *assigner) may(r Request, x netip.Addr) string {
	i := slices.IndexFunc(a.pools, func(p Pool) bool { return p.Has(x) })
	if i < 0 {
		return "is in no pool"
	}
	switch p := &a.pools[i]; {
	case p.excluded(r) != "":
		return fmt.Sprintf("is in pool %q, which is not for %s", p.Name, p.excluded(r))
	case r.Pool != "" && r.Pool != p.Name:
		return fmt.Sprintf("is in pool %q, and it asks for pool %q", p.Name, r.Pool)
	}
	return a.holders(x).refuse(r.holder(), a.pools[i].AcrossNamespaces)
}

// free returns the lowest address of a family that no Service has claimed or got. It does not look
// again at addresses that it has passed.
func (a *assigner) free(pool int, family Family) (netip.Addr, bool) {
	return a.next.first(a.pools, pool, family, func(x netip.Addr) bool { return a.has(a.chosen, x) || a.has(a.claims, x) })
}
