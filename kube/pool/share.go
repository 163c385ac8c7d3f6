package pool

import (
	"fmt"
	"net/netip"
	"slices"
)

// Holder is a Service that has an address. With a key it shares it with others that have the
// same key and other ports.
type Holder struct {
	Service
	Key   string   `json:"key,omitempty"`   // empty: it has the address alone
	Ports []string `json:"ports,omitempty"` // those that it has of the address, as 80/TCP, in order; without a key all
}

// Same reports whether both are the same Service and have the same of an address.
func (h Holder) Same(other Holder) bool {
	return h.Service == other.Service && h.Key == other.Key && slices.Equal(h.Ports, other.Ports)
}

// Refuses says why another Service cannot have the address too, or nothing: what is true of
// the address that it asks for.
func (h Holder) Refuses(other Holder) string {
	if h.Service == other.Service {
		return ""
	}
	if h.Key == "" || other.Key == "" || h.Key != other.Key {
		return "belongs to " + h.Service.String()
	}
	for _, port := range other.Ports {
		if slices.Contains(h.Ports, port) {
			return fmt.Sprintf("is shared with %s, which has port %s of it", h.Service, port)
		}
	}
	return ""
}

// Holders are all that have one address. They are not changed, but replaced.
type Holders []Holder

// Refuse says why a Service cannot have the address beside them, or nothing.
func (h Holders) Refuse(other Holder) string {
	for _, one := range h {
		if why := one.Refuses(other); why != "" {
			return why
		}
	}
	return ""
}

// Of returns what a Service has of the address.
func (h Holders) Of(s Service) (Holder, bool) {
	if i := slices.IndexFunc(h, func(one Holder) bool { return one.Service == s }); i >= 0 {
		return h[i], true
	}
	return Holder{}, false
}

// Without returns the others.
func (h Holders) Without(s Service) Holders {
	return slices.DeleteFunc(slices.Clone(h), func(one Holder) bool { return one.Service == s })
}

// With returns them with one more, or with one that has something else than before.
func (h Holders) With(one Holder) Holders { return append(h.Without(one.Service), one) }

// Share is an address, and one of those that have it.
type Share struct {
	Address netip.Addr
	Service Service
}

// String returns ADDRESS=NAMESPACE/NAME.
func (s Share) String() string { return s.Address.String() + "=" + s.Service.String() }

// holder is what a Service has of an address that it gets.
func (r Request) holder() Holder {
	if r.Key == "" {
		return Holder{Service: r.Service}
	}
	return Holder{Service: r.Service, Key: r.Key, Ports: r.Ports}
}

// joins returns an address of a family that Services with the same key have, and that the
// Service may have too.
func (a *assigner) joins(r Request, family Family) (none netip.Addr, found bool) {
	if r.Key == "" {
		return none, false
	}
	for _, list := range [][]netip.Addr{a.byKey[r.Key], a.shared[r.Key]} {
		for _, x := range list {
			if FamilyOf(x) != family || a.may(r, x) != "" {
				continue
			}
			if r.Pool != "" || !slices.ContainsFunc(a.pools, func(p Pool) bool { return p.OnRequest && p.Has(x) }) {
				return x, true
			}
		}
	}
	return none, false
}

// take gives the address to the Service, to be claimed if need be.
func (a *assigner) take(r Request, x netip.Addr) netip.Addr {
	h := r.holder()
	if has, is := a.holders(x).Of(r.Service); is && has.Same(h) {
		return x
	}
	a.claim[x] = a.claim[x].With(h)
	a.chosen[x] = a.holders(x).With(h)
	if h.Key != "" {
		a.shared[h.Key] = append(a.shared[h.Key], x)
	}
	return x
}
