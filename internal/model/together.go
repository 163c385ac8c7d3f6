package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// This file holds the rules about several services at once. Each rule sorts or hashes: a
// configuration may have 65,536 services and a million backends.

func (v *validation) serviceNames() {
	seen := make(map[string]int, len(v.config.Services))
	for i, s := range v.config.Services {
		if first, dup := seen[s.Name]; dup && s.Name != "" {
			v.errs.addWithOther(servicePath(i, "name"), servicePath(first, "name"),
				"%q is already the name of services[%d]", s.Name, first)
			continue
		}
		seen[s.Name] = i
	}
}

// portSpace is an address and protocol in a segment.
type portSpace struct {
	segment  Segment
	address  netip.Addr
	protocol Protocol
}

func (p portSpace) compare(o portSpace) int {
	return cmp.Or(cmp.Compare(p.segment.Key(), o.segment.Key()), p.address.Compare(o.address),
		cmp.Compare(p.protocol, o.protocol))
}

// portSpan is a range of ports of a port space, and the service that has it.
type portSpan struct {
	portSpace
	first, last      int
	service, backend int
}

func newPortSpan(at portSpace, r PortRange) portSpan {
	if r.All() {
		return portSpan{portSpace: at, first: 0, last: 65535}
	}
	return portSpan{portSpace: at, first: int(r.First), last: int(r.Last)}
}

func (c portSpan) contains(o portSpan) bool { return c.first <= o.first && o.last <= c.last }

// sweep calls clash for spans that share a port of a port space: for each, with the
// smallest of those that begin before it.
func sweep(spans []portSpan, clash func(outer, inner portSpan)) {
	slices.SortStableFunc(spans, func(a, b portSpan) int {
		return cmp.Or(a.compare(b.portSpace), cmp.Compare(a.first, b.first), cmp.Compare(b.last, a.last))
	})
	var open []portSpan
	for _, c := range spans {
		for n := len(open); n > 0 && (open[n-1].portSpace != c.portSpace || open[n-1].last < c.first); n-- {
			open = open[:n-1]
		}
		if len(open) > 0 {
			clash(open[len(open)-1], c)
		}
		open = append(open, c)
	}
}

// ports checks that every packet has one service. The most specific of nested ranges wins; equal
// ranges, and those that overlap in part, have no winner.
func (v *validation) ports() {
	var spans []portSpan
	for i, s := range v.config.Services {
		if s.VIP.IsValid() && s.Port.First <= s.Port.Last {
			c := newPortSpan(portSpace{s.Segment, s.VIP, s.Protocol}, s.Port)
			c.service = i
			spans = append(spans, c)
		}
	}
	sweep(spans, func(outer, inner portSpan) {
		if !outer.contains(inner) || inner.contains(outer) {
			v.portsOverlap(outer, inner)
		}
	})
}

func (v *validation) portsOverlap(a, b portSpan) {
	if a.service > b.service {
		a, b = b, a
	}
	s, first := &v.config.Services[b.service], &v.config.Services[a.service]
	if s.Port == first.Port {
		v.errs.addWithOther(servicePath(b.service, "port"), servicePath(a.service, "port"),
			"%s %s port %s already belongs to service %q", s.VIP, s.Protocol, s.Port, first.Name)
		return
	}
	v.errs.addWithOther(servicePath(b.service, "port"), servicePath(a.service, "port"),
		"%s and port %s of service %q overlap in part on %s %s: neither is the more specific",
		s.Port, first.Port, first.Name, s.VIP, s.Protocol)
}

// guePort is where tunnels of gue end (IANA, UDP).
const guePort = 6080

// addresses checks that no VIP is also a backend: the director would send the packet to itself, for
// ever. With nat it may be, at another port. And a backend's host may have a VIP as its own
// address, as nodes do for services at their ports: packets of no service pass to the host, and so
// do tunnels.
func (v *validation) addresses() {
	vips := make(map[segmentAddress][]int, len(v.config.Services))
	for i, s := range v.config.Services {
		if s.VIP.IsValid() {
			at := segmentAddress{s.Segment, s.VIP}
			vips[at] = append(vips[at], i)
		}
	}
	for i := range v.config.Services {
		s := &v.config.Services[i]
		for j := range s.Backends {
			b := &s.Backends[j]
			end := b.Address
			if b.Host.IsValid() {
				end = b.Host
			}
			v.tunnelEnd(i, j, vips[segmentAddress{Segment{}, end}])
			if b.Host == b.Address { // a pod in its host's own network
				continue
			}
			for _, k := range vips[segmentAddress{b.segmentIn(s), b.Address}] {
				if vip := &v.config.Services[k]; s.comesTo(b, vip) {
					v.errs.addWithOther(backendPath(i, j, "address"), servicePath(k, "vip"),
						"%s is the VIP of service %q", b.Address, vip.Name)
					break
				}
			}
		}
	}
}

// comesTo reports whether packets for a backend may come to a service whose VIP is its address. A
// service with kernel sources is at a host's own address, and gets packets only at its ports: from
// nat, from a pod's host that delivers them, and from clients that are handed over. Packets to the
// host's MAC address, or in a tunnel, are the host's.
func (s *Service) comesTo(b *Backend, vip *Service) bool {
	mode := b.ModeIn(*s)
	if mode == NAT || vip.KernelSources && (b.Host.IsValid() || b.RedirectsIn(s)) {
		return vip.Protocol == s.Protocol && vip.Port.Overlaps(b.portsIn(s))
	}
	return !vip.KernelSources
}

// segmentAddress is an address in a segment.
type segmentAddress struct {
	segment Segment
	address netip.Addr
}

// tunnelEnd checks that no service at the address where a backend's tunnels end takes them: it
// checks services at a pod's host, and those with kernel sources, at hosts' own addresses.
// addresses checks the others.
func (v *validation) tunnelEnd(i, j int, at []int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	field, end := "address", b.Address
	if b.Host.IsValid() {
		field, end = "host", b.Host
	}
	for _, k := range at {
		vip := &v.config.Services[k]
		if (b.Host.IsValid() || vip.KernelSources) && b.ModeIn(*s) == GUE && vip.Protocol == UDP && vip.Port.Contains(guePort) {
			v.errs.addWithOther(backendPath(i, j, field), servicePath(k, "vip"),
				"%s is the VIP of service %q, which has the UDP port %d, where tunnels of gue end", end, vip.Name, guePort)
			return
		}
	}
}

// segmentIn returns the segment in which packets for the backend travel.
func (b *Backend) segmentIn(s *Service) Segment {
	switch {
	case b.Segment != nil:
		return *b.Segment
	case b.VLAN != 0:
		return Segment{SegmentVLAN, uint32(b.VLAN)}
	case b.ModeIn(*s) == IPIP || b.ModeIn(*s) == GUE:
		return Segment{}
	}
	return s.Segment
}

// HostAddress is the address of a host, in its network: tenants may have the same addresses.
type HostAddress struct {
	Segment Segment // the zero value: in no tenant's network
	Address netip.Addr
}

// String returns "10.0.1.11", or "10.0.1.11 in vlan:100".
func (h HostAddress) String() string {
	if h.Segment == (Segment{}) {
		return h.Address.String()
	}
	return h.Address.String() + " in " + h.Segment.String()
}

// Compare orders addresses: those of one network are together.
func (h HostAddress) Compare(o HostAddress) int {
	return cmp.Or(h.Segment.Compare(o.Segment), h.Address.Compare(o.Address))
}

// AddressIn returns the address at which the backend of a service, and its agent, is found in its network. The
// end of a tunnel is in no tenant's, unless the key segment says so: vlan is only one director's way to it.
func (b *Backend) AddressIn(s *Service) HostAddress {
	mode := b.ModeIn(*s)
	if b.Segment == nil && (mode == IPIP || mode == GUE) {
		return HostAddress{Address: b.Address}
	}
	return HostAddress{b.segmentIn(s), b.Address}
}

// TenantIn returns the tenant's network that the backend is in; the zero value: it is in no tenant's, and the
// host's routes lead to it, as to the ends of tunnels.
func (b *Backend) TenantIn(s *Service) Segment {
	if b.Segment == nil && s.Segment == (Segment{}) {
		return Segment{}
	}
	return b.segmentIn(s)
}

// portsIn returns the ports at which a nat backend gets the packets of a service.
func (b *Backend) portsIn(s *Service) PortRange {
	if b.Port != 0 {
		return PortRange{b.Port, b.Port}
	}
	return s.Port
}

// ownAddresses checks that no VIP is an address of the group, by which directors reach each other,
// and that no service has a port that full NAT may use at one of its source addresses: a packet to
// it would be a client's and a reply at once.
func (v *validation) ownAddresses() {
	vips := make(map[netip.Addr]int) // in no segment, as is the group
	inside := make(map[segmentAddress]int)
	for i, s := range v.config.Services {
		at := segmentAddress{s.Segment, s.VIP}
		if _, seen := inside[at]; !seen {
			inside[at] = i
		}
		if _, seen := vips[s.VIP]; !seen && s.Segment == (Segment{}) {
			vips[s.VIP] = i
		}
	}
	for i := range v.config.Segments {
		s := &v.config.Segments[i]
		for j, a := range s.Addresses {
			if vip, is := inside[segmentAddress{s.ID, a}]; is && a.IsValid() {
				v.errs.addWithOther(fmt.Sprintf("segments[%d].addresses[%d]", i, j), servicePath(vip, "vip"),
					"%s is the VIP of service %q there: answers to health checks would come to the service", a, v.config.Services[vip].Name)
			}
		}
	}
	for i := range v.config.Segments {
		s := &v.config.Segments[i]
		for j, a := range s.SNATAddresses {
			if vip, is := inside[segmentAddress{s.ID, a}]; is && a.IsValid() {
				v.errs.addWithOther(fmt.Sprintf("segments[%d].snat-addresses[%d]", i, j), servicePath(vip, "vip"),
					"%s is the VIP of service %q there: replies would come to the service", a, v.config.Services[vip].Name)
			}
		}
	}
	d := &v.config.Director
	for i, a := range d.Group {
		if vip, is := vips[a]; is && a.IsValid() {
			v.errs.addWithOther(fmt.Sprintf("director.group[%d]", i), servicePath(vip, "vip"), "%s is the VIP of service %q", a, v.config.Services[vip].Name)
		}
	}
	sources := make(map[netip.Addr]int)
	for i, a := range d.SNAT.Addresses {
		sources[a] = i
	}
	said := make(map[netip.Addr]bool)
	for i, s := range v.config.Services {
		at, is := sources[s.VIP]
		if !is || said[s.VIP] || !s.VIP.IsValid() || !s.Port.Overlaps(d.SNAT.Ports) {
			continue
		}
		said[s.VIP] = true
		v.errs.addWithOther(fmt.Sprintf("director.snat.addresses[%d]", at), servicePath(i, "vip"),
			"%s is the VIP of service %q, whose port %s is among director.snat.ports, %s", s.VIP, s.Name, s.Port, d.SNAT.Ports)
	}
}

// replies checks that the reply of every nat backend without snat can be translated by its source
// alone: nothing is remembered about connections. It also checks that no redirected connection ends
// at an address and port whose replies are translated: its own replies would be translated, too.
// Several VIPs whose connections are redirected may have the same backends.
func (v *validation) replies() {
	var spans []portSpan
	for i := range v.config.Services {
		s := &v.config.Services[i]
		for j := range s.Backends {
			b := &s.Backends[j]
			if !s.repliesBy(b) && !b.RedirectsIn(s) || !b.Address.IsValid() {
				continue
			}
			c := newPortSpan(portSpace{b.segmentIn(s), b.Address, s.Protocol}, b.portsIn(s))
			c.service, c.backend = i, j
			spans = append(spans, c)
		}
	}
	sweep(spans, v.repliesClash)
}

// repliesBy reports whether directors translate what a backend sends, by its address and port
// alone.
func (s *Service) repliesBy(b *Backend) bool { return b.ModeIn(*s) == NAT && !s.SNAT }

func (v *validation) repliesClash(a, b portSpan) {
	if a.service == b.service {
		return // already said: the backend is there twice
	}
	if a.service > b.service {
		a, b = b, a
	}
	first, second := &v.config.Services[a.service], &v.config.Services[b.service]
	if !first.repliesBy(&first.Backends[a.backend]) && !second.repliesBy(&second.Backends[b.backend]) {
		// For each of their packets, the client's host knows the VIP, and the backend's host does
		// not.
		if !slices.Equal(first.SourceRanges, second.SourceRanges) {
			v.errs.addWithOther(servicePath(b.service, "source-ranges"), servicePath(a.service, "source-ranges"),
				"are others than those of service %q, and connections of both are handed over to %s %s port %s, where nothing tells which they are of",
				first.Name, second.Backends[b.backend].Address, second.Protocol, portsText(a, b))
		}
		return
	}
	if first.Mode == Redirect || second.Mode == Redirect {
		v.errs.addWithOther(backendPath(b.service, b.backend, "address"), backendPath(a.service, a.backend, "address"),
			"%s %s port %s is where connections of service %q and of service %q end, and directors could not tell their replies apart; let the one with nat have snat, or give it another port or address",
			second.Backends[b.backend].Address, second.Protocol, portsText(a, b), first.Name, second.Name)
		return
	}
	v.errs.addWithOther(backendPath(b.service, b.backend, "address"), backendPath(a.service, a.backend, "address"),
		"%s %s port %s is a nat backend of service %q and of service %q: a reply from it could be either's; use snat, or another port or address",
		second.Backends[b.backend].Address, second.Protocol, portsText(a, b), first.Name, second.Name)
}

// portsText names the ports that two spans share.
func portsText(a, b portSpan) string {
	first, last := max(a.first, b.first), min(a.last, b.last)
	if first == 0 {
		return PortRange{}.String()
	}
	return PortRange{uint16(first), uint16(last)}.String()
}
