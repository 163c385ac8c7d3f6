package pool

import (
	"fmt"
	"net/netip"
	"slices"
)

// Holder is a Service that has an address. A Service with a key shares the address with others that
// have the same key and other ports, in its own namespace and in those that it names.
type Holder struct {
	Service
	Key   string   `json:"key,omitempty"`   // empty: it has the address alone
	Ports []string `json:"ports,omitempty"` // its ports of the address, as 80/TCP, in order; without a key it has all
	// With are other namespaces whose Services may join it, if it had the address first; *: all.
	With []string `json:"with,omitempty"`
}

// Same reports whether both are the same Service with the same key, ports and namespaces.
func (h Holder) Same(other Holder) bool {
	return h.Service == other.Service && h.Key == other.Key && slices.Equal(h.Ports, other.Ports) && slices.Equal(h.With, other.With)
}

// everyNamespace in With stands for all namespaces.
const everyNamespace = "*"

// lets reports whether a Service of another namespace may join the holder.
func (h Holder) lets(other Holder) bool {
	return h.Namespace == other.Namespace || slices.Contains(h.With, other.Namespace) || slices.Contains(h.With, everyNamespace)
}

// Refuses says why another Service cannot have the address too, or nothing. The reason is a
// statement about the address.
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

// Holders are all Services that have one address. They are not changed, but replaced.
type Holders []Holder

// Refuse says why a Service cannot have the address beside the holders, or nothing. The first
// holder says which namespaces may; a Service that has joined stays.
func (h Holders) Refuse(other Holder) string { return h.refuse(other, false) }

// refuse does what Refuse does, for an address of a pool that may let all namespaces share.
func (h Holders) refuse(other Holder, all bool) string {
	if why := h.Clash(other); why != "" || len(h) == 0 {
		return why
	}
	if _, joined := h.Of(other.Service); joined || all || h[0].lets(other) {
		return ""
	}
	return fmt.Sprintf("is shared by %s with its own namespace alone", h[0].Service)
}

// Clash says why a Service cannot have the address beside the holders, whichever namespaces may
// join, or nothing.
func (h Holders) Clash(other Holder) string {
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

// Without returns the other holders.
func (h Holders) Without(s Service) Holders {
	return slices.DeleteFunc(slices.Clone(h), func(one Holder) bool { return one.Service == s })
}

// With returns the holders with one more, or with one replaced in its place. The order matters: the
// first holder had the address first.
func (h Holders) With(one Holder) Holders {
	list := slices.Clone(h)
	if i := slices.IndexFunc(list, func(h Holder) bool { return h.Service == one.Service }); i >= 0 {
		list[i] = one
		return list
	}
	return append(list, one)
}

// Share is an address, and one of the Services that have it.
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
	return Holder{Service: r.Service, Key: r.Key, Ports: r.Ports, With: r.With}
}

// joins returns an address of a family that Services with the same key have and that the Service
// may share.
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

// assign gives the address to the Service, to be claimed if need be.
func (a *assigner) assign(r Request, x netip.Addr) netip.Addr {
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
