package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// redirect is a service whose connections go to its backends directly, if directors and hosts agree
// to that.
type redirect struct {
	name      string
	vip       netip.AddrPort
	ambiguous bool // another VIP has the same option
	shared    bool // another VIP has one of its backends
	prefixes  []netip.Prefix
	here      []netip.AddrPort // those of its backends that are on this host
	callers   []netip.Prefix   // sources that may send to these; empty: all
}

// redirects returns the services from which this host's clients may be redirected, and this host's
// backends to which other hosts' clients may be: backends whose address it has, and backends in the
// namespaces that it looks at and its guests, whose packets it forwards past the programs on its
// uplinks.
func redirects(config model.Config, h host) []redirect {
	var list []redirect
	named := make(map[optionName]int)     // first of that name
	owned := make(map[netip.AddrPort]int) // first with that backend
	for _, s := range config.Services {
		if s.Mode != model.Redirect {
			continue
		}
		r := redirect{name: s.Name, vip: netip.AddrPortFrom(s.VIP, s.Port.First), prefixes: s.RedirectTo}
		for i := range s.Backends {
			b := &s.Backends[i]
			if !b.RedirectsIn(&s) {
				continue
			}
			at := b.RedirectedTo(&s)
			if first, same := owned[at]; same && first < len(list) {
				r.shared, list[first].shared = true, true
			} else {
				owned[at] = len(list)
			}
			if len(s.RedirectTo) == 0 {
				r.prefixes = append(r.prefixes, netip.PrefixFrom(b.Address, b.Address.BitLen()))
			}
			if h.has(b.Address) || h.elsewhere.addresses[b.Address] || isGuest(b.Address, config.Agent.Guests) {
				r.here = append(r.here, at)
			}
		}
		if len(s.SourceRanges) > 0 { // directors probe backends
			r.callers = slices.Concat(s.SourceRanges, config.Directors)
		}
		if first, same := named[nameOf(r.vip)]; same {
			r.ambiguous, list[first].ambiguous = true, true
		} else {
			named[nameOf(r.vip)] = len(list)
		}
		list = append(list, r)
	}
	return list
}

func isGuest(address netip.Addr, guests []netip.Prefix) bool {
	return slices.ContainsFunc(guests, func(p netip.Prefix) bool { return p.Contains(address) })
}

// optionName is what the option says of a VIP.
type optionName struct {
	tail [4]byte
	port uint16
	ipv6 bool
}

func nameOf(vip netip.AddrPort) optionName {
	bytes := vip.Addr().AsSlice()
	return optionName{[4]byte(bytes[len(bytes)-4:]), vip.Port(), vip.Addr().Is6()}
}

// redirectTables are the contents that the maps must have.
type redirectTables struct {
	vips     map[redirectHostEndpoint]uint32
	names    map[redirectRedirectName]uint32
	here     map[redirectRedirectPlace]uint32
	services map[uint32]redirectRedirectService
	prefixes map[redirectRedirectPrefix]uint32
	fresh    []uint32 // newly given indexes, whose counters are old
}

// newRedirectTables gives every service an index: the one that its VIP has in the kernel,
// or one that no VIP has there.
func newRedirectTables(list []redirect, known map[redirectHostEndpoint]uint32, limit uint32) (redirectTables, error) {
	t := redirectTables{
		vips:     map[redirectHostEndpoint]uint32{},
		names:    map[redirectRedirectName]uint32{},
		here:     map[redirectRedirectPlace]uint32{},
		services: map[uint32]redirectRedirectService{},
		prefixes: map[redirectRedirectPrefix]uint32{},
	}
	free := newIndexes(limit, maps.Values(known))
	for i := range list {
		index, found := known[redirectEndpoint(list[i].vip)]
		if !found && !free.allocate(&index) {
			return redirectTables{}, fmt.Errorf("service %s: a host can be redirected from %d VIPs", list[i].name, limit-1)
		}
		t.add(&list[i], index)
	}
	t.fresh = free.taken
	return t, nil
}

func (t *redirectTables) add(r *redirect, index uint32) {
	service := redirectRedirectService{Vip: redirectAddressOf(r.vip.Addr()), Port: networkOrder(r.vip.Port())}
	if r.ambiguous {
		service.Flags |= uint16(redirectRedirectServiceFlagREDIRECT_NOT_ASKED)
	}
	if r.shared {
		service.Flags |= uint16(redirectRedirectServiceFlagREDIRECT_SHARED)
	}
	t.services[index] = service
	t.vips[redirectEndpoint(r.vip)] = index
	t.names[redirectNameKey(nameOf(r.vip))] = index
	for _, end := range r.here {
		place := redirectRedirectPlace{Here: redirectEndpoint(end)}
		if _, known := t.here[place]; !known {
			t.here[place] = index
		}
		place.Name = redirectNameKey(nameOf(r.vip))
		t.here[place] = index
	}
	for _, p := range r.prefixes {
		t.prefixes[prefixKey(index, p)] = 1
		t.prefixes[prefixKey(noService, p)] = 1 // of any service
	}
}
