package doctor

import (
	"fmt"
	"net/netip"

	"weir.io/weir/internal/model"
)

// places are at which VTEPs hosts of tenants' networks are, as far as it is known.
type places struct {
	of   map[model.HostAddress]netip.Addr
	runs bool // a director has said it, which also knows what other sources say
}

// readPlaces reads the places of hosts from the configuration, and from a director that runs.
func (x *examination) readPlaces(ask func() *model.SegmentsStatus) {
	x.places = places{of: map[model.HostAddress]netip.Addr{}}
	if ask != nil && x.config.InOverlays() {
		if status := ask(); status != nil {
			x.places.runs = true
			for i := range status.Segments {
				for _, h := range status.Segments[i].Hosts {
					x.places.of[model.HostAddress{Segment: status.Segments[i].ID, Address: h.Address}] = h.VTEP
				}
			}
		}
	}
	for i := range x.config.Segments {
		for _, h := range x.config.Segments[i].Hosts {
			x.places.of[model.HostAddress{Segment: x.config.Segments[i].ID, Address: h.Address}] = h.VTEP
		}
	}
}

// overlayBackend is the way to the VTEP of a backend in VXLAN or Geneve, and what keeps packets from the backend;
// nil: nothing.
func (x *examination) overlayBackend(at model.HostAddress, b *model.Backend, neighbors map[netip.Addr]bool) (hop, *Finding) {
	check := "backend " + at.String()
	vtep := b.VTEP
	if !vtep.IsValid() {
		vtep = x.places.of[at]
	}
	if !vtep.IsValid() && x.places.runs {
		return hop{}, &Finding{Fail, check, fmt.Sprintf("nothing says at which VTEP it is in %s: it gets no packets until something does", at.Segment), "give vtep and mac, or the segment's hosts"}
	}
	if !vtep.IsValid() {
		return hop{}, &Finding{Warn, check, fmt.Sprintf("the configuration does not say at which VTEP it is in %s, and no director that runs was found, which may know it from its API, OVN or EVPN", at.Segment),
			"start the director, or give vtep and mac, or the segment's hosts"}
	}
	way, problem := x.way(vtep)
	via := vtep
	if way.gateway.IsValid() {
		via = way.gateway
	}
	switch {
	case problem != "":
		return way, &Finding{Fail, check, fmt.Sprintf("it is at VTEP %s, and %s", vtep, problem), "ip route add " + vtep.String() + " ..."}
	case way.local, neighbors[via], way.kernel:
		return way, nil
	}
	return way, &Finding{Warn, check, fmt.Sprintf("it is at VTEP %s, and the MAC address of the next hop %s is not known: it gets no packets until it is", vtep, via),
		fmt.Sprintf("ping %s, and see that %s reaches it", via, way.link.Attrs().Name)}
}

// vtep checks that this host has the addresses where tunnels of tenants' networks end: without them other VTEPs find
// nobody, and the kernel takes no part in finding the director.
func (x *examination) vtep() {
	for _, a := range x.config.Director.VTEP.Addresses {
		check := "vtep " + a.String()
		if index, here := x.addresses[a]; here {
			x.ok(check, "is an address of %s", x.links[index].Attrs().Name)
			continue
		}
		on := "eth0"
		if names := x.config.Director.Interfaces; len(names) > 0 {
			on = names[0]
		}
		x.fail(check, fmt.Sprintf("ip addr add %s/%d dev %s, with the length of its network, or name an address of this host in director.vtep.addresses", a, a.BitLen(), on),
			"is on no interface of this host: no tunnel of a tenant's network ends here, and no packet of theirs is forwarded")
	}
}
