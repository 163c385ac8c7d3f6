package doctor

import (
	"net"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// services checks what a director can say about services without their backends'
// hosts.
func (x *examination) services() {
	listed := 0
	vips := make(map[netip.Addr]bool)
	for _, s := range x.localServices() {
		vips[s.VIP] = true // the agent's checks say more
	}
	for _, s := range x.config.Services {
		if s.Segment == (model.Segment{}) { // else it is an address of another network than the host's
			x.vip(s.VIP, vips)
		}
		if idle(s) {
			if listed++; listed <= maxListed {
				x.warn("service "+s.Name, "", "no backend is to take new connections: all are down, draining or of weight 0; if some had a weight, the last of these get all of them")
			}
		}
	}
	if listed > maxListed {
		x.warn("services", "", "%d more have no backend that takes new connections", listed-maxListed)
	}
}

// idle reports whether a service's new connections are dropped.
func idle(s model.Service) bool {
	for _, b := range s.Backends {
		if b.State == model.Active && b.Weight > 0 {
			return false
		}
	}
	return true
}

// vip checks that a VIP is no address of a director's interface, unless its services are ports
// of this host.
func (x *examination) vip(vip netip.Addr, checked map[netip.Addr]bool) {
	if checked[vip] {
		return
	}
	checked[vip] = true
	link := x.links[x.addresses[vip]]
	if link == nil || link.Attrs().Flags&net.FlagLoopback != 0 {
		return
	}
	if x.sharesVIP(vip) {
		x.ok("vip "+vip.String(), "is an address of %s, whose other ports stay this host's", link.Attrs().Name)
		return
	}
	x.warn("vip "+vip.String(), "remove it, and route the VIP to this host",
		"is an address of %s: this host answers itself what it does not forward", link.Attrs().Name)
}

// sharesVIP reports whether packets of all services of a VIP go to backends that do not have it: a
// host's own address may be such a VIP.
func (x *examination) sharesVIP(vip netip.Addr) bool {
	return !slices.ContainsFunc(x.config.Services, func(s model.Service) bool {
		return s.VIP == vip && slices.ContainsFunc(s.Backends, func(b model.Backend) bool {
			return !b.Host.IsValid() && !(s.SNAT && b.ModeIn(s) == model.NAT)
		})
	})
}
