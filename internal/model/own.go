package model

import (
	"fmt"
	"net/netip"
)

// OwnInside is what a director itself has in tenants' networks: no host of them can have it.
type OwnInside struct {
	config    *Config
	settings  map[Segment]*SegmentSettings
	addresses map[segmentAddress]ownPlace
	macs      map[Segment]MAC
	vips      map[segmentAddress]int // with the first service that has each
}

// ownPlace is where the configuration has an address, and the key of its list.
type ownPlace struct{ path, key string }

// NewOwnInside returns what a director has by its configuration.
func NewOwnInside(c *Config) *OwnInside {
	o := &OwnInside{config: c, settings: map[Segment]*SegmentSettings{}, addresses: map[segmentAddress]ownPlace{}, macs: map[Segment]MAC{}, vips: map[segmentAddress]int{}}
	for i := range c.Segments {
		s := &c.Segments[i]
		o.settings[s.ID] = s
		for j, a := range s.SNATAddresses {
			o.addresses[segmentAddress{s.ID, a}] = ownPlace{fmt.Sprintf("segments[%d].snat-addresses[%d]", i, j), "segments[].snat-addresses"}
		}
		for j, a := range s.Addresses {
			o.addresses[segmentAddress{s.ID, a}] = ownPlace{fmt.Sprintf("segments[%d].addresses[%d]", i, j), "segments[].addresses"}
		}
	}
	for i := range c.Services {
		at := segmentAddress{c.Services[i].Segment, c.Services[i].VIP}
		if _, seen := o.vips[at]; !seen && at.segment.IsOverlay() {
			o.vips[at] = i
		}
	}
	return o
}

// mac is the director's MAC address in a network in VXLAN or Geneve; zero: it is no VTEP.
func (o *OwnInside) mac(in Segment) MAC {
	if !o.config.Director.VTEP.Given() {
		return MAC{}
	}
	mac, known := o.macs[in]
	if !known {
		if s := o.settings[in]; s != nil {
			mac = s.MACAt(&o.config.Director.VTEP)
		} else {
			mac = VTEPMAC(o.config.Director.VTEP.Addresses, in)
		}
		o.macs[in] = mac
	}
	return mac
}

// ownHost is why a host cannot be what is said of it.
type ownHost struct {
	field   string // of the host
	other   string // what has it, in the configuration; empty: it is not written there
	service int    // whose VIP it is; -1: no service's
	problem string
}

// refuse says why a host cannot be what is said of it; nil: it can.
func (o *OwnInside) refuse(in Segment, h *SegmentHost) *ownHost {
	at := segmentAddress{in, h.Address}
	if place, own := o.addresses[at]; own {
		return &ownHost{"address", place.path, -1, ownAddress(at, place)}
	}
	if !h.MAC.IsZero() && h.MAC == o.mac(in) {
		return &ownHost{"mac", "", -1, ownMAC(h.MAC, in)}
	}
	if i, is := o.vips[at]; is {
		return &ownHost{"address", servicePath(i, "vip"), i, fmt.Sprintf("%s is the VIP of service %q in %s, and no host's", h.Address, o.config.Services[i].Name, in)}
	}
	return nil
}

// Refuse says why a host cannot be what a source says of it, or nothing. Other directors of a group may tell by OVN and
// EVPN that they have the VIPs.
func (o *OwnInside) Refuse(in Segment, h *SegmentHost, source HostSource) string {
	is := o.refuse(in, h)
	if is == nil || is.service >= 0 && (source == HostsOfOVN || source == HostsOfEVPN) {
		return ""
	}
	return is.problem
}

func ownAddress(at segmentAddress, place ownPlace) string {
	return fmt.Sprintf("%s is this director's own address in %s (%s), and no other host's", at.address, at.segment, place.key)
}

func ownMAC(mac MAC, in Segment) string {
	return fmt.Sprintf("%s is this director's own MAC address in %s, and no other host's", mac, in)
}

// ownInside is what the director has in tenants' networks.
func (v *validation) ownInside() *OwnInside {
	if v.inside == nil {
		v.inside = NewOwnInside(v.config)
	}
	return v.inside
}

// ownBackends checks that no backend is at an address of the director's in its tenant's network.
func (v *validation) ownBackends() {
	own := v.ownInside()
	if len(own.addresses) == 0 && !v.config.Director.VTEP.Given() {
		return
	}
	for i := range v.config.Services {
		s := &v.config.Services[i]
		for j := range s.Backends {
			b := &s.Backends[j]
			in := b.TenantIn(s)
			if in == (Segment{}) {
				continue
			}
			at := segmentAddress{in, b.Address}
			if place, is := own.addresses[at]; is {
				v.errs.addWithOther(backendPath(i, j, "address"), place.path, "%s", ownAddress(at, place))
			}
			if in.IsOverlay() && !b.MAC.IsZero() && b.MAC == own.mac(in) {
				v.errs.add(backendPath(i, j, "mac"), "%s", ownMAC(b.MAC, in))
			}
		}
	}
}

// macPlace is where a MAC address is.
type macPlace struct {
	vtep    netip.Addr
	address netip.Addr
	index   int
}

// MACsApart finds hosts of one network that have the MAC address of another one at another VTEP.
type MACsApart map[MAC]macPlace

// Find says of which host before this one that is so, or nothing; index is the host's in its list.
func (m MACsApart) Find(h *SegmentHost, index int) (first int, problem string) {
	at, known := m[h.MAC]
	switch {
	case !known:
		m[h.MAC] = macPlace{h.VTEP, h.Address, index}
	case at.vtep != h.VTEP:
		return at.index, fmt.Sprintf("%s is at VTEP %s, and it is the MAC address of %s at VTEP %s, too: a host is at one of them", h.MAC, h.VTEP, at.address, at.vtep)
	}
	return 0, ""
}
